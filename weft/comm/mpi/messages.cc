#include "weft/comm/mpi/messages.h"

#include <algorithm>

namespace weft {

namespace {

// MPI counts in int; longer messages are sent in parts, which stay in order.
constexpr std::int64_t longest_part = std::int64_t{1} << 30;

}  // namespace

MpiMessages::MpiMessages(std::shared_ptr<MpiControl> control, MPI_Comm comm)
    : control_(std::move(control)), comm_(comm) {}

MpiMessages::~MpiMessages() {
  // After a failure messages may still be pending in it; the process is about to end.
  if (!control_->ended().load() && !control_->finalized()) MPI_Comm_free(&comm_);
}

void MpiMessages::send(int peer, int tag, const std::byte* data, std::int64_t bytes) {
  std::int64_t at = 0;
  do {
    const std::int64_t part = std::min(longest_part, bytes - at);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(data + at, static_cast<int>(part), MPI_BYTE, peer, tag, comm_, &request), "MPI_Isend");
    requests_.push_back(request);
    messages_.push_back({peer, false, part, 1});
    at += part;
  } while (at < bytes);
}

void MpiMessages::receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) {
  std::int64_t at = 0;
  do {
    const std::int64_t part = std::min(longest_part, bytes - at);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(data + at, static_cast<int>(part), MPI_BYTE, peer, tag, comm_, &request), "MPI_Irecv");
    requests_.push_back(request);
    messages_.push_back({peer, true, part, width});
    at += part;
  } while (at < bytes);
}

bool MpiMessages::test() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED) return true;
  for (int i = 0; i < count; ++i) {
    const Message& message = messages_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    int error_class = MPI_SUCCESS;
    if (code == MPI_ERR_IN_STATUS) MPI_Error_class(status.MPI_ERROR, &error_class);
    if (error_class != MPI_SUCCESS && error_class != MPI_ERR_TRUNCATE) check_mpi(status.MPI_ERROR, "MPI_Testsome");
    if (!message.receive || mismatch_) continue;
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    if (bytes != message.bytes || error_class == MPI_ERR_TRUNCATE)
      mismatch_ =
          Mismatch{message.peer, static_cast<std::int64_t>(bytes) / message.width, message.bytes / message.width};
  }
  return std::ranges::all_of(requests_, [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

Messages::Outcome MpiMessages::wait(double seconds) {
  const Nanoseconds deadline = now_ns() + static_cast<Nanoseconds>(seconds * 1e9);
  mismatch_.reset();
  const Backoff backoff;
  while (!test()) {
    if (mismatch_) break;  // incomplete messages will be abandoned
    if (control_->ended().load()) return Outcome::ended;
    if (now_ns() >= deadline) return Outcome::late;
    backoff.pause();
  }
  if (mismatch_) return Outcome::done;
  requests_.clear();
  messages_.clear();
  return Outcome::done;
}

std::vector<int> MpiMessages::pending_peers() const {
  std::vector<int> peers;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && std::ranges::find(peers, messages_[i].peer) == peers.end())
      peers.push_back(messages_[i].peer);
  std::ranges::sort(peers);
  return peers;
}

void MpiMessages::abandon() {
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && messages_[i].receive) MPI_Cancel(&requests_[i]);
  const Nanoseconds begin = now_ns();
  const Nanoseconds receives_until = begin + 2'000'000'000, sends_until = begin + 100'000'000;
  const Backoff backoff;
  const auto pending = [&](bool receives) {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && messages_[i].receive == receives) return true;
    return false;
  };
  while ((pending(true) && now_ns() < receives_until) || (pending(false) && now_ns() < sends_until)) {
    for (MPI_Request& request : requests_) {
      int done = 0;
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    backoff.pause();
  }
  requests_.clear();
  messages_.clear();
}

}  // namespace weft
