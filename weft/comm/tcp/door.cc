#include "weft/comm/tcp/door.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

namespace {

constexpr auto patience = std::chrono::seconds(10);          // with a caller that says nothing
constexpr auto quiet_for = std::chrono::seconds(10);         // before it says for whom it waits
constexpr auto words_take = std::chrono::milliseconds(500);  // at most, to write a few bytes

}  // namespace

Door::Door(Socket listener, int rank, int size, std::string run)
    : listener_(std::move(listener)), rank_(rank), size_(size), run_(std::move(run)) {}

std::string Door::missing(int first, const std::vector<Socket>& peers) const {
  std::vector<std::string> names;
  for (int rank = first; rank < size_; ++rank)
    if (!peers[static_cast<std::size_t>(rank)].open()) names.push_back(std::to_string(rank));
  constexpr std::size_t most = 16;
  const std::size_t count = names.size();
  if (count == 1) return fmt::format("rank {} of {}", names[0], size_);
  if (count > most) {
    names.resize(most);
    return fmt::format("ranks {} and {} more of {}", join(names, ", "), count - most, size_);
  }
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("ranks {} and {} of {}", join(names, ", "), last, size_);
}

std::string Door::turned_away() const {
  return turned_away_.empty() ? "" : "; turned away: " + join(turned_away_, ", ");
}

void Door::turn_away(const Socket& socket, const std::string& why) {
  constexpr std::size_t most = 4;
  turned_away_.push_back(fmt::format("{} ({})", remote_end(socket).text(), why));
  if (turned_away_.size() > most) turned_away_.erase(turned_away_.begin());
}

std::string Door::objection(const Greeting& greeting, int first, const std::vector<Socket>& peers) const {
  if (greeting.version != protocol_version)
    return fmt::format("it speaks version {} of Weft's protocol, this run version {}; start the same build everywhere",
                       greeting.version, protocol_version);
  if (greeting.run != fixed_text<64>(run_))
    return fmt::format(
        "it belongs to run '{}', this is run '{}'; runs on one machine need different ports (MASTER_PORT)",
        greeting.run.data(), run_);
  if (greeting.size != size_)
    return fmt::format("it was started as rank {} of {}, and this run has {} ranks; give all the same world size",
                       greeting.rank, greeting.size, size_);
  if (greeting.to != rank_) return fmt::format("it looks for rank {}, this is rank {}", greeting.to, rank_);
  if (greeting.rank < first || greeting.rank >= size_)
    return fmt::format("rank {} has no business here", greeting.rank);
  const Socket& there = peers[static_cast<std::size_t>(greeting.rank)];
  if (there.open())
    return fmt::format("rank {} is here already, from {}; every process needs a rank of its own", greeting.rank,
                       remote_end(there).host);
  return "";
}

bool Door::listen_to(Caller& caller, int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends) {
  auto* bytes = reinterpret_cast<char*>(&caller.greeting);
  const ssize_t got = recv(caller.socket.fd(), bytes + caller.have, sizeof(Greeting) - caller.have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got > 0) caller.have += static_cast<std::size_t>(got);
  const bool other = std::memcmp(bytes, &greeting_magic, std::min(caller.have, sizeof(greeting_magic))) != 0;
  if (other || got <= 0) {
    turn_away(caller.socket, "not a rank of Weft");
    return false;
  }
  if (caller.have < sizeof(Greeting)) return true;
  Greeting& greeting = caller.greeting;
  greeting.host.back() = greeting.run.back() = '\0';
  const std::string why = objection(greeting, first, peers);
  Answer answer;
  answer.welcome = why.empty() ? 1 : 0;
  answer.why = fixed_text<240>(why);
  const bool answered = write_all(caller.socket, &answer, sizeof(answer), Clock::now() + words_take);
  if (!why.empty()) turn_away(caller.socket, why);
  if (!why.empty() || !answered) return false;
  const auto rank = static_cast<std::size_t>(greeting.rank);
  ends[rank] = {greeting.host.data(), greeting.port};
  peers[rank] = std::move(caller.socket);
  return false;
}

bool Door::let_in(int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends, Clock::time_point until,
                  Departed departed, const std::string& place) {
  const auto speak_at = Clock::now() + quiet_for;
  bool spoken = false;
  std::vector<pollfd> watched;
  const auto all_here = [&] {
    return std::ranges::all_of(peers.begin() + first, peers.end(), [](const Socket& peer) { return peer.open(); });
  };
  while (first < size_ && !all_here()) {
    if (Clock::now() >= until) return false;
    if (!spoken && Clock::now() >= speak_at) {
      spoken = true;
      fmt::print(stderr, "weft: rank {} waits for {} at {}{}\n", rank_, missing(first, peers), place, turned_away());
    }
    watched.assign(1, {listener_.fd(), POLLIN, 0});
    for (const Caller& caller : callers_) watched.push_back({caller.socket.fd(), POLLIN, 0});
    for (const Socket& peer : peers) watched.push_back({peer.fd(), POLLRDHUP, 0});  // poll skips what is not open
    const auto wake_at = std::min({until, spoken ? until : speak_at, Clock::now() + std::chrono::seconds(1)});
    poll(watched.data(), watched.size(), milliseconds_until(wake_at));

    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      if (!peers[rank].open() || (watched[1 + callers_.size() + rank].revents & (POLLRDHUP | POLLERR | POLLHUP)) == 0)
        continue;
      if (departed == Departed::fatal)
        throw RunError("rank {} is gone (its connection closed) before all ranks were connected", rank);
      turn_away(peers[rank], fmt::format("rank {} came, and is gone", rank));
      peers[rank].close();
    }
    std::size_t place_of = 1;
    std::erase_if(callers_, [&](Caller& caller) {
      const short events = watched[place_of++].revents;
      if (events != 0) return !listen_to(caller, first, peers, ends);
      return Clock::now() > caller.until;
    });
    if ((watched[0].revents & POLLIN) == 0) continue;
    Socket fresh(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fresh.open()) callers_.push_back({std::move(fresh), Clock::now() + patience, 0, {}});
  }
  return true;
}

}  // namespace weft
