#include "weft/comm/tcp/listener.h"

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

constexpr auto patience = std::chrono::seconds(10);           // with a connection that sends nothing
constexpr auto quiet_for = std::chrono::seconds(10);          // before it prints which ranks it waits for
constexpr auto reply_takes = std::chrono::milliseconds(500);  // at most, to write a few bytes

}  // namespace

Listener::Listener(Socket socket, int rank, int size, std::string run)
    : socket_(std::move(socket)), rank_(rank), size_(size), run_(std::move(run)) {}

std::string Listener::missing(int first, const std::vector<Socket>& peers) const {
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

std::string Listener::refusals() const { return refusals_.empty() ? "" : "; refused: " + join(refusals_, ", "); }

void Listener::refuse(const Socket& socket, const std::string& why) {
  constexpr std::size_t most = 4;
  refusals_.push_back(fmt::format("{} ({})", remote_end(socket).text(), why));
  if (refusals_.size() > most) refusals_.erase(refusals_.begin());
}

std::string Listener::reason_to_refuse(const Hello& hello, int first, const std::vector<Socket>& peers) const {
  if (hello.version != protocol_version)
    return fmt::format("it uses version {} of Weft's protocol, this run version {}; start the same build everywhere",
                       hello.version, protocol_version);
  if (hello.run != fixed_text<64>(run_))
    return fmt::format(
        "it belongs to run '{}', but this is run '{}'; start the ranks of a run with the same options, and give runs "
        "on "
        "one machine different ports (MASTER_PORT)",
        hello.run.data(), run_);
  if (hello.size != size_)
    return fmt::format("it was started as rank {} of {}, but this run has {} ranks; give all the same world size",
                       hello.rank, hello.size, size_);
  if (hello.to != rank_) return fmt::format("it looks for rank {}, but this is rank {}", hello.to, rank_);
  if (hello.rank < first || hello.rank >= size_)
    return fmt::format("rank {} does not connect to this rank", hello.rank);
  const Socket& there = peers[static_cast<std::size_t>(hello.rank)];
  if (there.open())
    return fmt::format("rank {} is already connected, from {}; every process needs a rank of its own", hello.rank,
                       remote_end(there).host);
  return "";
}

bool Listener::read_hello(Candidate& candidate, int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends) {
  auto* bytes = reinterpret_cast<char*>(&candidate.hello);
  const ssize_t got = recv(candidate.socket.fd(), bytes + candidate.have, sizeof(Hello) - candidate.have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got > 0) candidate.have += static_cast<std::size_t>(got);
  const bool other = std::memcmp(bytes, &handshake_magic, std::min(candidate.have, sizeof(handshake_magic))) != 0;
  if (other || got <= 0) {
    refuse(candidate.socket, "not a Weft rank");
    return false;
  }
  if (candidate.have < sizeof(Hello)) return true;
  Hello& hello = candidate.hello;
  hello.host.back() = hello.run.back() = '\0';
  const std::string why = reason_to_refuse(hello, first, peers);
  HelloReply reply;
  reply.accepted = why.empty() ? 1 : 0;
  reply.why = fixed_text<240>(why);
  const bool answered = write_all(candidate.socket, &reply, sizeof(reply), Clock::now() + reply_takes);
  if (!why.empty()) refuse(candidate.socket, why);
  if (!why.empty() || !answered) return false;
  const auto rank = static_cast<std::size_t>(hello.rank);
  ends[rank] = {hello.host.data(), hello.port};
  peers[rank] = std::move(candidate.socket);
  return false;
}

bool Listener::accept_ranks(int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends, Clock::time_point until,
                            Departed departed, const std::string& place) {
  const auto print_at = Clock::now() + quiet_for;
  bool printed = false;
  std::vector<pollfd> watched;
  const auto all_here = [&] {
    return std::ranges::all_of(peers.begin() + first, peers.end(), [](const Socket& peer) { return peer.open(); });
  };
  while (first < size_ && !all_here()) {
    if (Clock::now() >= until) return false;
    if (!printed && Clock::now() >= print_at) {
      printed = true;
      fmt::print(stderr, "weft: rank {} waits for {} at {}{}\n", rank_, missing(first, peers), place, refusals());
    }
    watched.assign(1, {socket_.fd(), POLLIN, 0});
    for (const Candidate& candidate : candidates_) watched.push_back({candidate.socket.fd(), POLLIN, 0});
    for (const Socket& peer : peers)
      watched.push_back({peer.fd(), POLLRDHUP, 0});  // poll skips sockets that are not open
    const auto wake_at = std::min({until, printed ? until : print_at, Clock::now() + std::chrono::seconds(1)});
    poll(watched.data(), watched.size(), milliseconds_until(wake_at));

    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      if (!peers[rank].open() ||
          (watched[1 + candidates_.size() + rank].revents & (POLLRDHUP | POLLERR | POLLHUP)) == 0)
        continue;
      if (departed == Departed::fatal)
        throw RunError("rank {} is gone (its connection closed) before all ranks were connected", rank);
      refuse(peers[rank], fmt::format("rank {} connected and left", rank));
      peers[rank].close();
    }
    std::size_t place_of = 1;
    std::erase_if(candidates_, [&](Candidate& candidate) {
      const short events = watched[place_of++].revents;
      if (events != 0) return !read_hello(candidate, first, peers, ends);
      return Clock::now() > candidate.until;
    });
    if ((watched[0].revents & POLLIN) == 0) continue;
    Socket fresh(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fresh.open()) candidates_.push_back({std::move(fresh), Clock::now() + patience, 0, {}});
  }
  return true;
}

}  // namespace weft
