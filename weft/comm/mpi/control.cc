#include "weft/comm/mpi/control.h"

#include <utility>

#include <signal.h>

namespace weft {

namespace {

constexpr Nanoseconds period = 10'000'000;       // between two polls, in ns
constexpr Nanoseconds busy_period = 200'000;     // while messages are being sent, or after the run has ended
constexpr Nanoseconds last_sends = 500'000'000;  // to finish sending when the thread ends

}  // namespace

MpiControl::MpiControl(MPI_Comm comm, int rank, int size, Sigterm sigterm)
    : Control(rank, size), comm_(comm), sigterm_(sigterm), incoming_(longest_text) {
  post_receive();
  thread_ = std::thread([this] { work(); });
}

MpiControl::~MpiControl() {
  stop_.store(true);
  thread_.join();
}

void MpiControl::send(int peer, Message message, std::shared_ptr<const std::string> text) {
  const std::lock_guard lock(mutex_);
  outgoing_.push_back({peer, message, std::move(text)});
}

void MpiControl::post_receive() {
  check_mpi(MPI_Irecv(incoming_.data(), static_cast<int>(incoming_.size()), MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG,
                      comm_, &receive_),
            "MPI_Irecv");
}

// The thread. An MPI error here ends the run too.
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
      pause();
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
    handle(status.MPI_SOURCE, static_cast<Message>(status.MPI_TAG),
           std::string(incoming_.data(), static_cast<std::size_t>(length)));
    post_receive();
  }
}

void MpiControl::send_messages() {
  std::list<Outgoing> fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh.swap(outgoing_);
  }
  for (Outgoing& message : fresh) {
    check_mpi(MPI_Isend(message.text->data(), static_cast<int>(message.text->size()), MPI_BYTE, message.peer,
                        static_cast<int>(message.kind), comm_, &message.request),
              "MPI_Isend");
  }
  sending_.splice(sending_.end(), fresh);
  sending_.remove_if([](Outgoing& message) {
    int done = 0;
    check_mpi(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
}

void MpiControl::pause() {
  const bool busy = !sending_.empty() || ended().load() || stop_.load();
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

}  // namespace weft
