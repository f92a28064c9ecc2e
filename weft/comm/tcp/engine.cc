#include "weft/comm/tcp/engine.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::uint64_t wake_event = ~std::uint64_t{0}, signal_event = wake_event - 1;  // others are ranks
constexpr auto last_writes = std::chrono::milliseconds(500);
constexpr std::size_t staging_bytes = 64 * 1024;

void watch(const Socket& poll, int action, int fd, std::uint64_t which, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = which;
  if (epoll_ctl(poll.fd(), action, fd, &event) != 0 && errno != ENOENT)
    throw RunError("epoll_ctl failed: {}", std::strerror(errno));
}

}  // namespace

TcpEngine::TcpEngine(std::vector<Socket> peers, Sigterm sigterm, Events events)
    : connections_(peers.size()),
      events_(std::move(events)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      staging_(staging_bytes) {
  if (!poll_.open() || !wake_.open()) throw RunError("epoll or eventfd failed: {}", std::strerror(errno));
  watch(poll_, EPOLL_CTL_ADD, wake_.fd(), wake_event, EPOLLIN);
  if (sigterm == Sigterm::watch) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    signals_ = Socket(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.open()) throw RunError("signalfd failed: {}", std::strerror(errno));
    watch(poll_, EPOLL_CTL_ADD, signals_.fd(), signal_event, EPOLLIN);
  }
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    if (peers[rank].open()) open_connection(static_cast<int>(rank), std::move(peers[rank]));
}

TcpEngine::~TcpEngine() { stop(); }

void TcpEngine::open_connection(int rank, Socket socket) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  const int fd = socket.fd();
  connection.socket = std::move(socket);
  const auto which = static_cast<std::uint64_t>(rank);
  connection.outgoing = std::make_unique<Outgoing>(
      fd,
      [this](Posted& message) {
        const std::lock_guard lock(mutex_);
        message.done = true;
        if (--message.batch->open == 0) message.batch->changed.notify_all();
      },
      [this, fd, which](bool room) { watch(poll_, EPOLL_CTL_MOD, fd, which, room ? EPOLLIN | EPOLLOUT : EPOLLIN); });
  Outgoing* const out = connection.outgoing.get();
  connection.incoming = std::make_unique<Incoming>(
      fd, mutex_,
      Incoming::Callbacks{
          [this, rank](std::uint32_t kind, const std::string& text) { events_.control(rank, kind, text); },
          [out](std::uint64_t offer) { out->accepted(offer); },
          [out](std::uint64_t offer) { out->send_accept(offer); },
      });
  watch(poll_, EPOLL_CTL_ADD, fd, which, EPOLLIN);
}

void TcpEngine::start() {
  thread_ = std::thread([this] { work(); });
}

void TcpEngine::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void TcpEngine::send_control(int rank, std::uint32_t kind, std::shared_ptr<const std::string> text) {
  connections_[static_cast<std::size_t>(rank)].outgoing->send_control(kind, std::move(text));
}

void TcpEngine::post(Posted& message) {
  {
    const std::lock_guard lock(mutex_);
    ++message.batch->open;
  }
  Connection& connection = connections_[static_cast<std::size_t>(message.rank)];
  if (message.receive)
    connection.incoming->post(message);
  else
    connection.outgoing->send(message);
}

void TcpEngine::abandon(Posted& message) {
  Connection& connection = connections_[static_cast<std::size_t>(message.rank)];
  if (message.receive)
    connection.incoming->abandon(message);
  else
    connection.outgoing->abandon(message);
}

void TcpEngine::wait(PostedBatch& batch, double seconds, const std::atomic<bool>& ended) {
  std::unique_lock lock(mutex_);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  batch.changed.wait_until(lock, until, [&] { return batch.open == 0 || batch.mismatch || ended.load(); });
}

void TcpEngine::wake_waits() {
  const std::lock_guard lock(mutex_);
  for (PostedBatch* batch : batches_) batch->changed.notify_all();
}

void TcpEngine::add(PostedBatch& batch) {
  const std::lock_guard lock(mutex_);
  batches_.insert(&batch);
}

void TcpEngine::remove(PostedBatch& batch) {
  const std::lock_guard lock(mutex_);
  batches_.erase(&batch);
}

bool TcpEngine::control_written() {
  for (const Connection& connection : connections_)
    if (connection.outgoing && !connection.outgoing->idle()) return false;
  return true;
}

// The thread. A system error here ends the run too.
void TcpEngine::work() {
  std::array<epoll_event, 64> happened{};
  std::optional<Clock::time_point> stop_at;
  try {
    while (true) {
      if (stop_.load()) {
        if (!stop_at) stop_at = Clock::now() + last_writes;
        if (control_written() || Clock::now() > *stop_at) return;
      }
      const int count = epoll_wait(poll_.fd(), happened.data(), static_cast<int>(happened.size()), stop_at ? 10 : -1);
      if (count < 0 && errno != EINTR) throw RunError("epoll_wait failed: {}", std::strerror(errno));
      for (int i = 0; i < count; ++i)
        handle_event(happened[static_cast<std::size_t>(i)].data.u64, happened[static_cast<std::size_t>(i)].events);
    }
  } catch (const std::exception& error) {
    events_.failed(error.what());
  }
}

void TcpEngine::handle_event(std::uint64_t which, std::uint32_t events) {
  if (which == wake_event) {
    eventfd_t value = 0;
    eventfd_read(wake_.fd(), &value);
  } else if (which == signal_event) {
    signalfd_siginfo info{};
    if (::read(signals_.fd(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) events_.sigterm();
  } else {
    Connection& connection = connections_[static_cast<std::size_t>(which)];
    if (connection.closed) return;
    if ((events & EPOLLOUT) != 0) connection.outgoing->write();
    if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(static_cast<int>(which));
  }
}

void TcpEngine::read(int rank) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  const std::string why = connection.incoming->read(staging_);
  if (why.empty()) return;
  connection.closed = true;
  connection.outgoing->close();
  watch(poll_, EPOLL_CTL_DEL, connection.socket.fd(), 0, 0);
  events_.lost(rank, why);
}

}  // namespace weft
