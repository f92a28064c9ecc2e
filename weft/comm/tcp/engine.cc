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
constexpr auto last_words = std::chrono::milliseconds(500);
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
    : links_(peers.size()),
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
    if (peers[rank].open()) open_link(static_cast<int>(rank), std::move(peers[rank]));
}

TcpEngine::~TcpEngine() { stop(); }

void TcpEngine::open_link(int rank, Socket socket) {
  Link& link = links_[static_cast<std::size_t>(rank)];
  const int fd = socket.fd();
  link.socket = std::move(socket);
  const auto which = static_cast<std::uint64_t>(rank);
  link.outgoing = std::make_unique<Outgoing>(
      fd,
      [this](Posted& message) {
        const std::lock_guard lock(mutex_);
        message.done = true;
        if (--message.batch->open == 0) message.batch->changed.notify_all();
      },
      [this, fd, which](bool room) { watch(poll_, EPOLL_CTL_MOD, fd, which, room ? EPOLLIN | EPOLLOUT : EPOLLIN); });
  Outgoing* const out = link.outgoing.get();
  link.incoming = std::make_unique<Incoming>(
      fd, mutex_,
      Incoming::Calls{
          [this, rank](std::uint32_t word, const std::string& text) { events_.word(rank, word, text); },
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

void TcpEngine::tell(int rank, std::uint32_t word, std::shared_ptr<const std::string> text) {
  links_[static_cast<std::size_t>(rank)].outgoing->send_word(word, std::move(text));
}

void TcpEngine::post(Posted& message) {
  {
    const std::lock_guard lock(mutex_);
    ++message.batch->open;
  }
  Link& link = links_[static_cast<std::size_t>(message.rank)];
  if (message.receive)
    link.incoming->post(message);
  else
    link.outgoing->send(message);
}

void TcpEngine::abandon(Posted& message) {
  Link& link = links_[static_cast<std::size_t>(message.rank)];
  if (message.receive)
    link.incoming->abandon(message);
  else
    link.outgoing->abandon(message);
}

void TcpEngine::wait(PostedBatch& batch, double seconds, const std::atomic<bool>& ended) {
  std::unique_lock lock(mutex_);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  batch.changed.wait_until(lock, until, [&] { return batch.open == 0 || batch.misfit || ended.load(); });
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

bool TcpEngine::words_written() {
  for (const Link& link : links_)
    if (link.outgoing && !link.outgoing->idle()) return false;
  return true;
}

// The thread. An error of the system here is the end of the run too.
void TcpEngine::work() {
  std::array<epoll_event, 64> happened{};
  std::optional<Clock::time_point> stop_at;
  try {
    while (true) {
      if (stop_.load()) {
        if (!stop_at) stop_at = Clock::now() + last_words;
        if (words_written() || Clock::now() > *stop_at) return;
      }
      const int count = epoll_wait(poll_.fd(), happened.data(), static_cast<int>(happened.size()), stop_at ? 10 : -1);
      if (count < 0 && errno != EINTR) throw RunError("epoll_wait failed: {}", std::strerror(errno));
      for (int i = 0; i < count; ++i)
        look_after(happened[static_cast<std::size_t>(i)].data.u64, happened[static_cast<std::size_t>(i)].events);
    }
  } catch (const std::exception& error) {
    events_.failed(error.what());
  }
}

void TcpEngine::look_after(std::uint64_t which, std::uint32_t events) {
  if (which == wake_event) {
    eventfd_t value = 0;
    eventfd_read(wake_.fd(), &value);
  } else if (which == signal_event) {
    signalfd_siginfo info{};
    if (::read(signals_.fd(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) events_.sigterm();
  } else {
    Link& link = links_[static_cast<std::size_t>(which)];
    if (link.over) return;
    if ((events & EPOLLOUT) != 0) link.outgoing->write();
    if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(static_cast<int>(which));
  }
}

void TcpEngine::read(int rank) {
  Link& link = links_[static_cast<std::size_t>(rank)];
  const std::string over = link.incoming->read(staging_);
  if (over.empty()) return;
  link.over = true;
  link.outgoing->close();
  watch(poll_, EPOLL_CTL_DEL, link.socket.fd(), 0, 0);
  events_.lost(rank, over);
}

}  // namespace weft
