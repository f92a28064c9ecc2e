#include "weft/comm/tcp/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include <sys/resource.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/comm/tcp/door.h"
#include "weft/comm/tcp/greeting.h"

namespace weft {

namespace {

constexpr auto quiet_for = std::chrono::seconds(10);    // before it says for whom it waits
constexpr auto letter_later = std::chrono::seconds(5);  // than the timeout, so that rank 0 can say who is missing
constexpr auto rest_takes = std::chrono::seconds(30);   // at least, when all are known to be there
constexpr auto one_attempt = std::chrono::seconds(5);   // to connect
constexpr std::uint32_t longest_letter = 64 * 1024 * 1024;

// A connection to every other rank, and some files beside.
void allow_files(int size) {
  const auto needed = static_cast<rlim_t>(size) + 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw UserError("{} ranks need {} open files a process, and the limit is {}: raise it (ulimit -Hn)", size, needed,
                    limit.rlim_max);
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Rendezvous {
 public:
  Rendezvous(int rank, int size, const Meeting& meeting, double timeout)
      : rank_(rank),
        size_(size),
        meeting_(meeting),
        timeout_(timeout),
        begin_(Clock::now()),
        until_(begin_ +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 1e9)))),
        peers_(static_cast<std::size_t>(size)),
        ends_(static_cast<std::size_t>(size)) {}

  std::vector<Socket> run() {
    allow_files(size_);
    if (rank_ == 0)
      receive_all();
    else
      join_others();
    for (const Socket& peer : peers_)
      if (peer.open()) prepare(peer);
    return std::move(peers_);
  }

 private:
  std::string listening_host() const { return meeting_.one_machine ? meeting_.at.host : ""; }
  double waited() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void receive_all() {
    Socket listener = listen_at(listening_host(), meeting_.at.port);
    if (!listener.open())
      throw RunError("rank 0 cannot listen at {}: {}; set MASTER_PORT to a free port, on every rank",
                     meeting_.at.text(), std::strerror(errno));
    Door door(std::move(listener), 0, size_, meeting_.run);
    if (!door.let_in(1, peers_, ends_, until_, Door::Departed::again, meeting_.at.text())) {
      const std::string why = fmt::format("waited {:.1f} s for {} to come to {} (the timeout is {} s){}", waited(),
                                          door.missing(1, peers_), meeting_.at.text(), timeout_, door.turned_away());
      send_letters(Letter::failure, why);
      throw RunError(why);
    }
    std::string list;
    for (const Endpoint& end : ends_) list += fmt::format("{} {}\n", end.host.empty() ? "-" : end.host, end.port);
    send_letters(Letter::list, list);
  }

  void send_letters(Letter::Kind kind, const std::string& text) {
    const Letter letter{kind, static_cast<std::uint32_t>(text.size())};
    const auto until = std::max(until_, Clock::now() + one_attempt);
    for (const Socket& peer : peers_)  // one that does not take it is noticed later
      if (peer.open() && write_all(peer, &letter, sizeof(letter), until))
        write_all(peer, text.data(), text.size(), until);
  }

  void join_others() {
    Socket listener = listen_at(listening_host(), 0);
    if (!listener.open()) throw RunError("rank {} cannot listen: {}", rank_, std::strerror(errno));
    Door door(std::move(listener), rank_, size_, meeting_.run);
    Socket first = call_rank_0(door.port());
    own_host_ = local_end(first).host;
    const std::string first_host = remote_end(first).host;
    peers_[0] = std::move(first);
    read_list();
    until_ = std::max(until_, Clock::now() + rest_takes);
    for (std::size_t to = 1; to < static_cast<std::size_t>(rank_); ++to) {
      // A loopback address means rank 0's machine, which this rank may have to reach from elsewhere.
      if (is_loopback(ends_[to].host) && !is_loopback(own_host_)) ends_[to].host = first_host;
      peers_[to] = call(static_cast<int>(to), ends_[to], door.port());
    }
    if (!door.let_in(rank_ + 1, peers_, ends_, until_, Door::Departed::fatal, fmt::format("port {}", door.port())))
      throw RunError("rank {} waited {:.1f} s for {} to connect to its port {} (the timeout is {} s){}", rank_,
                     waited(), door.missing(rank_ + 1, peers_), door.port(), timeout_, door.turned_away());
    // Answers last: those before us may have been busy with calls of their own.
    for (std::size_t to = 1; to < static_cast<std::size_t>(rank_); ++to)
      if (!hear_answer(peers_[to], static_cast<int>(to), ends_[to]))
        throw RunError("rank {} at {} has closed its connection to rank {}, or does not answer", to, ends_[to].text(),
                       rank_);
  }

  // Rank 0 may start later, or a dying run may still hold its port: tries until it is welcome.
  Socket call_rank_0(int port) {
    while (true) {
      Socket socket = call(0, meeting_.at, port);
      if (hear_answer(socket, 0, meeting_.at)) return socket;
      pause("it closed the connection", meeting_.at, 0);
    }
  }

  Socket call(int to, const Endpoint& end, int port) {
    while (true) {
      std::string why;
      Socket socket = connect_to(end, std::min(until_, Clock::now() + one_attempt), why);
      if (socket.open()) {
        Greeting greeting;
        greeting.size = size_;
        greeting.rank = rank_;
        greeting.to = to;
        greeting.port = port;
        greeting.host = fixed_text<64>(local_end(socket).host);
        greeting.run = fixed_text<64>(meeting_.run);
        if (write_all(socket, &greeting, sizeof(greeting), until_)) return socket;
        why = std::strerror(errno);
      }
      pause(why, end, to);
    }
  }

  // Between two attempts; throws when there is no time for another.
  void pause(const std::string& why, const Endpoint& end, int to) {
    if (Clock::now() >= until_)
      throw RunError(
          "rank {} waited {:.1f} s for rank {} at {}: {} (the timeout is {} s). Is rank {} running, and are "
          "MASTER_ADDR "
          "and MASTER_PORT the same on every rank?",
          rank_, waited(), to, end.text(), why, timeout_, to);
    if (!spoken_ && Clock::now() - begin_ > quiet_for) {
      spoken_ = true;
      fmt::print(stderr, "weft: rank {} waits for rank {} at {}: {}\n", rank_, to, end.text(), why);
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 3 / 2, std::chrono::milliseconds(500));
  }

  // True when we are welcome, false when the connection closed; a refusal throws.
  bool hear_answer(const Socket& socket, int from, const Endpoint& end) const {
    Answer answer;
    if (!read_all(socket, &answer, sizeof(answer.magic), until_)) return false;
    if (answer.magic != greeting_magic)
      throw UserError("what listens at {} is not Weft; set MASTER_PORT to a free port, on every rank", end.text());
    constexpr std::size_t rest = sizeof(answer) - sizeof(answer.magic);
    if (!read_all(socket, reinterpret_cast<char*>(&answer) + sizeof(answer.magic), rest, until_)) return false;
    answer.why.back() = '\0';
    if (answer.welcome == 0)
      throw UserError("rank {} at {} turns this process away, which is rank {} of {}: {}", from, end.text(), rank_,
                      size_, answer.why.data());
    return true;
  }

  void read_list() {
    const auto until = until_ + letter_later;
    Letter letter;
    std::string text;
    bool complete = read_all(peers_[0], &letter, sizeof(letter), until) && letter.bytes <= longest_letter;
    if (complete) {
      text.resize(letter.bytes);
      complete = read_all(peers_[0], text.data(), text.size(), until);
    }
    if (!complete)
      throw RunError("rank {} waited {:.1f} s at {} for the other ranks, and rank 0 is gone or says nothing", rank_,
                     waited(), meeting_.at.text());
    if (letter.kind == Letter::failure) throw RunError("rank 0 failed: {}", text);
    const std::vector<std::string> lines = split(text, '\n');
    for (std::size_t rank = 0; rank < ends_.size() && rank < lines.size(); ++rank) {
      const std::vector<std::string> words = split(lines[rank], ' ');
      std::int64_t port = 0;
      if (words.size() == 2 && parse_int(words[1], port)) ends_[rank] = {words[0], static_cast<int>(port)};
    }
  }

  int rank_, size_;
  const Meeting& meeting_;
  double timeout_;
  Clock::time_point begin_, until_;
  std::vector<Socket> peers_;
  std::vector<Endpoint> ends_;  // where they listen
  std::string own_host_;
  bool spoken_ = false;
  std::chrono::milliseconds pause_{10};
};

}  // namespace

std::vector<Socket> connect_ranks(int rank, int size, const Meeting& meeting, double timeout) {
  return Rendezvous(rank, size, meeting, timeout).run();
}

}  // namespace weft
