#include "weft/comm/mpi/control.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/comm/world.h"

namespace weft {

namespace {

constexpr std::size_t longest_message = 64 * 1024;
constexpr Nanoseconds period = 10'000'000;       // between two looks, in ns
constexpr Nanoseconds busy_period = 200'000;     // while messages are under way, or the run has ended
constexpr Nanoseconds last_sends = 500'000'000;  // what is on its way when the thread ends

std::shared_ptr<const std::string> shared_text(const std::string& text) {
  return std::make_shared<const std::string>(text.substr(0, longest_message));
}

}  // namespace

MpiControl::MpiControl(MPI_Comm comm, int rank, int size, const Standing& standing, Sigterm sigterm)
    : comm_(comm),
      rank_(rank),
      size_(size),
      standing_(standing),
      sigterm_(sigterm),
      answers_(static_cast<std::size_t>(size)),
      gone_(static_cast<std::size_t>(size)),
      incoming_(longest_message) {
  post_receive();
  thread_ = std::thread([this] { work(); });
}

MpiControl::~MpiControl() {
  stop_.store(true);
  thread_.join();
}

void MpiControl::throw_if_ended() const {
  if (!ended_.load()) return;
  const std::lock_guard lock(mutex_);
  throw PeerError(failure_->first, failure_->second);
}

bool MpiControl::fail(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_.emplace(RankId(rank_), message);
    ended_.store(true);
    changed_.notify_all();
  }
  tell_others(failure, message);
  return true;
}

std::vector<std::string> MpiControl::ask_standings(double seconds) {
  std::unique_lock lock(mutex_);
  answers_.assign(answers_.size(), std::nullopt);
  lock.unlock();
  tell_others(question, "");
  lock.lock();
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    for (std::size_t peer = 0; peer < answers_.size(); ++peer)
      if (peer != static_cast<std::size_t>(rank_) && !answers_[peer]) return ended_.load();
    return true;
  });
  std::vector<std::string> texts;
  for (std::size_t peer = 0; peer < answers_.size(); ++peer) {
    if (peer == static_cast<std::size_t>(rank_))
      texts.push_back(standing_.text());
    else
      texts.push_back(answers_[peer].value_or(""));
  }
  return texts;
}

bool MpiControl::say_goodbye(double seconds) {
  tell_others(goodbye, "");
  std::unique_lock lock(mutex_);
  gone_[static_cast<std::size_t>(rank_)] = true;
  const bool failed_before = ended_.load();
  const auto all_gone = [&] { return std::ranges::all_of(gone_, [](bool gone) { return gone; }); };
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return all_gone() || (!failed_before && ended_.load()); });
  return all_gone();
}

void MpiControl::tell(int peer, int tag, std::shared_ptr<const std::string> text) {
  const std::lock_guard lock(mutex_);
  outgoing_.push_back({peer, tag, std::move(text)});
}

void MpiControl::tell_others(int tag, const std::string& text) {
  const auto shared = shared_text(text);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) tell(peer, tag, shared);
}

void MpiControl::post_receive() {
  check_mpi(MPI_Irecv(incoming_.data(), static_cast<int>(incoming_.size()), MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG,
                      comm_, &receive_),
            "MPI_Irecv");
}

// The thread. An error of MPI here is the end of the run too.
void MpiControl::work() {
  Nanoseconds stop_at = 0;
  try {
    while (true) {
      read_messages();
      send_messages();
      if (stop_.load()) {
        if (stop_at == 0) stop_at = now_ns() + last_sends;
        const std::lock_guard lock(mutex_);
        if ((sending_.empty() && outgoing_.empty()) || now_ns() > stop_at) break;
      }
      rest();
    }
    MPI_Cancel(&receive_);
    MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void MpiControl::read_messages() {
  while (true) {
    int arrived = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&receive_, &arrived, &status), "MPI_Test");
    if (arrived == 0) return;
    int length = 0;
    MPI_Get_count(&status, MPI_BYTE, &length);
    handle(status.MPI_SOURCE, status.MPI_TAG, std::string(incoming_.data(), static_cast<std::size_t>(length)));
    post_receive();
  }
}

void MpiControl::handle(int peer, int tag, std::string text) {
  if (tag == question) {
    tell(peer, answer, shared_text(standing_.text()));  // asks the rank's status, which may not hold our mutex
    return;
  }
  const std::lock_guard lock(mutex_);
  if (tag == failure && !failure_) {
    failure_.emplace(RankId(peer), std::move(text));
    ended_.store(true);
  } else if (tag == answer) {
    answers_[static_cast<std::size_t>(peer)] = std::move(text);
  } else if (tag == goodbye) {
    gone_[static_cast<std::size_t>(peer)] = true;
  }
  changed_.notify_all();
}

void MpiControl::send_messages() {
  std::list<Outgoing> fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(outgoing_);
  }
  for (Outgoing& message : fresh) {
    check_mpi(MPI_Isend(message.text->data(), static_cast<int>(message.text->size()), MPI_BYTE, message.peer,
                        message.tag, comm_, &message.request),
              "MPI_Isend");
  }
  sending_.splice(sending_.end(), fresh);
  sending_.remove_if([](Outgoing& message) {
    int done = 0;
    check_mpi(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
}

void MpiControl::rest() {
  const bool busy = !sending_.empty() || ended_.load() || stop_.load();
  const timespec length{0, static_cast<long>(busy ? busy_period : period)};
  if (sigterm_ == Sigterm::leave) {
    nanosleep(&length, nullptr);
    return;
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (sigtimedwait(&set, nullptr, &length) == SIGTERM) note_sigterm();
}

void MpiControl::note_sigterm() {
  if (std::exchange(told_to_stop_, true)) _exit(128 + SIGTERM);  // asked twice: whoever computes will not come back
  const std::string where = standing_.text();
  if (!fail(fmt::format("told to stop (SIGTERM; mpirun sends it to every rank when one dies). It stood at: {}", where)))
    return;
  // Written at once and by hand: mpirun kills within a second, and the threads that wait may never get to speak.
  const std::string line = fmt::format("weft: rank {} is told to stop (SIGTERM). It stood at: {}\n", rank_, where);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace weft
