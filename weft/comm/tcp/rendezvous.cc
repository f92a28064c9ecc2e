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
#include "weft/comm/tcp/handshake.h"
#include "weft/comm/tcp/listener.h"

namespace weft {

namespace {

constexpr auto quiet_for = std::chrono::seconds(10);   // before it prints which rank it waits for
constexpr auto list_grace = std::chrono::seconds(5);   // after the timeout, for rank 0 to report missing ranks
constexpr auto rest_takes = std::chrono::seconds(30);  // at least, once all ranks are known to be running
constexpr auto one_attempt = std::chrono::seconds(5);  // to connect
constexpr std::uint32_t longest_announcement = 64 * 1024 * 1024;

// Allows a connection to every other rank and some more files.
void allow_files(int size) {
  const auto needed = static_cast<rlim_t>(size) + 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw UserError("{} ranks need {} open files per process, but the limit is {}: raise it (ulimit -Hn)", size, needed,
                    limit.rlim_max);
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Rendezvous {
 public:
  Rendezvous(int rank, int size, const MasterAddress& master, double timeout)
      : rank_(rank),
        size_(size),
        master_(master),
        timeout_(timeout),
        begin_(Clock::now()),
        until_(begin_ +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 1e9)))),
        peers_(static_cast<std::size_t>(size)),
        ends_(static_cast<std::size_t>(size)) {}

  std::vector<Socket> run() {
    allow_files(size_);
    if (rank_ == 0)
      accept_others();
    else
      join_others();
    for (const Socket& peer : peers_)
      if (peer.open()) prepare(peer);
    return std::move(peers_);
  }

 private:
  std::string listening_host() const { return master_.one_machine ? master_.endpoint.host : ""; }
  double waited() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void accept_others() {
    Socket socket = listen_at(listening_host(), master_.endpoint.port);
    if (!socket.open())
      throw RunError("rank 0 cannot listen at {}: {}; set MASTER_PORT to a free port, on every rank",
                     master_.endpoint.text(), std::strerror(errno));
    Listener listener(std::move(socket), 0, size_, master_.run_id);
    if (!listener.accept_ranks(1, peers_, ends_, until_, Listener::Departed::may_return, master_.endpoint.text())) {
      const std::string why =
          fmt::format("waited {:.1f} s for {} to connect to {} (the timeout is {} s){}", waited(),
                      listener.missing(1, peers_), master_.endpoint.text(), timeout_, listener.refusals());
      announce(Announcement::failure, why);
      throw RunError(why);
    }
    std::string list;
    for (const Endpoint& end : ends_) list += fmt::format("{} {}\n", end.host.empty() ? "-" : end.host, end.port);
    announce(Announcement::list, list);
  }

  void announce(Announcement::Kind kind, const std::string& text) {
    const Announcement announcement{kind, static_cast<std::uint32_t>(text.size())};
    const auto until = std::max(until_, Clock::now() + one_attempt);
    for (const Socket& peer : peers_)  // one that cannot be reached is noticed later
      if (peer.open() && write_all(peer, &announcement, sizeof(announcement), until))
        write_all(peer, text.data(), text.size(), until);
  }

  void join_others() {
    Socket socket = listen_at(listening_host(), 0);
    if (!socket.open()) throw RunError("rank {} cannot listen: {}", rank_, std::strerror(errno));
    Listener listener(std::move(socket), rank_, size_, master_.run_id);
    Socket first = connect_to_rank_0(listener.port());
    own_host_ = local_end(first).host;
    const std::string first_host = remote_end(first).host;
    peers_[0] = std::move(first);
    read_list();
    until_ = std::max(until_, Clock::now() + rest_takes);
    for (std::size_t to = 1; to < static_cast<std::size_t>(rank_); ++to) {
      // A loopback address means rank 0's machine, which this rank may have to reach from another machine.
      if (is_loopback(ends_[to].host) && !is_loopback(own_host_)) ends_[to].host = first_host;
      peers_[to] = connect_to_rank(static_cast<int>(to), ends_[to], listener.port());
    }
    if (!listener.accept_ranks(rank_ + 1, peers_, ends_, until_, Listener::Departed::fatal,
                               fmt::format("port {}", listener.port())))
      throw RunError("rank {} waited {:.1f} s for {} to connect to its port {} (the timeout is {} s){}", rank_,
                     waited(), listener.missing(rank_ + 1, peers_), listener.port(), timeout_, listener.refusals());
    // Replies are read last: the ranks below may have been busy connecting themselves.
    for (std::size_t to = 1; to < static_cast<std::size_t>(rank_); ++to)
      if (!read_reply(peers_[to], static_cast<int>(to), ends_[to]))
        throw RunError("rank {} at {} has closed its connection to rank {}, or does not answer", to, ends_[to].text(),
                       rank_);
  }

  // Rank 0 may start later, or a dying run may still hold its port: retries until it is accepted.
  Socket connect_to_rank_0(int port) {
    while (true) {
      Socket socket = connect_to_rank(0, master_.endpoint, port);
      if (read_reply(socket, 0, master_.endpoint)) return socket;
      pause("it closed the connection", master_.endpoint, 0);
    }
  }

  Socket connect_to_rank(int to, const Endpoint& end, int port) {
    while (true) {
      std::string why;
      Socket socket = connect_to(end, std::min(until_, Clock::now() + one_attempt), why);
      if (socket.open()) {
        Hello hello;
        hello.size = size_;
        hello.rank = rank_;
        hello.to = to;
        hello.port = port;
        hello.host = fixed_text<64>(local_end(socket).host);
        hello.run = fixed_text<64>(master_.run_id);
        if (write_all(socket, &hello, sizeof(hello), until_)) return socket;
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
          "MASTER_ADDR and MASTER_PORT the same on every rank?",
          rank_, waited(), to, end.text(), why, timeout_, to);
    if (!printed_ && Clock::now() - begin_ > quiet_for) {
      printed_ = true;
      fmt::print(stderr, "weft: rank {} waits for rank {} at {}: {}\n", rank_, to, end.text(), why);
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 3 / 2, std::chrono::milliseconds(500));
  }

  // True if this rank is accepted, false if the connection closed; a refusal throws.
  bool read_reply(const Socket& socket, int from, const Endpoint& end) const {
    HelloReply reply;
    if (!read_all(socket, &reply, sizeof(reply.magic), until_)) return false;
    if (reply.magic != handshake_magic)
      throw UserError("the process listening at {} is not Weft; set MASTER_PORT to a free port, on every rank",
                      end.text());
    constexpr std::size_t rest = sizeof(reply) - sizeof(reply.magic);
    if (!read_all(socket, reinterpret_cast<char*>(&reply) + sizeof(reply.magic), rest, until_)) return false;
    reply.why.back() = '\0';
    if (reply.accepted == 0)
      throw UserError("rank {} at {} refused this process (rank {} of {}): {}", from, end.text(), rank_, size_,
                      reply.why.data());
    return true;
  }

  void read_list() {
    const auto until = until_ + list_grace;
    Announcement announcement;
    std::string text;
    bool complete =
        read_all(peers_[0], &announcement, sizeof(announcement), until) && announcement.bytes <= longest_announcement;
    if (complete) {
      text.resize(announcement.bytes);
      complete = read_all(peers_[0], text.data(), text.size(), until);
    }
    if (!complete)
      throw RunError("rank {} waited {:.1f} s at {} for the other ranks, but rank 0 is gone or does not answer", rank_,
                     waited(), master_.endpoint.text());
    if (announcement.kind == Announcement::failure) throw RunError("rank 0 failed: {}", text);
    const std::vector<std::string> lines = split(text, '\n');
    for (std::size_t rank = 0; rank < ends_.size() && rank < lines.size(); ++rank) {
      const std::vector<std::string> words = split(lines[rank], ' ');
      std::int64_t port = 0;
      if (words.size() == 2 && parse_int(words[1], port)) ends_[rank] = {words[0], static_cast<int>(port)};
    }
  }

  int rank_, size_;
  const MasterAddress& master_;
  double timeout_;
  Clock::time_point begin_, until_;
  std::vector<Socket> peers_;
  std::vector<Endpoint> ends_;  // where the peers listen
  std::string own_host_;
  bool printed_ = false;
  std::chrono::milliseconds pause_{10};
};

}  // namespace

std::vector<Socket> connect_ranks(int rank, int size, const MasterAddress& master, double timeout) {
  return Rendezvous(rank, size, master, timeout).run();
}

}  // namespace weft
