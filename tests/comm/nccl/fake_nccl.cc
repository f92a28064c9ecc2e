#include "tests/comm/nccl/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/comm/queued_device.h"

namespace weft {

struct FakeMessage {
  const void* data;
  std::size_t bytes;
  bool taken = false;
};

// The ranks with one unique id.
struct FakeClique {
  explicit FakeClique(int n) : boxes(static_cast<std::size_t>(n * n)), size(n) {}
  std::vector<std::deque<std::shared_ptr<FakeMessage>>> boxes;  // from x size + to
  int size, joined = 0, connected = 0;
};

namespace nccl {

struct Comm {
  std::shared_ptr<FakeClique> clique;
  int rank = 0, kernels = 0;
  bool connected = false, aborted = false, gone = false;
};

}  // namespace nccl

namespace {

using nccl::Comm;
using nccl::Result;

constexpr Result remote_error = 6, invalid_usage = 5;

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, std::shared_ptr<FakeClique>> cliques;
  std::list<nccl::Comm> comms;  // including those that are gone, so that misuse is noticed
  std::uint64_t ids = 0;
  bool hold = false, hold_connect = false, fail = false;
  int bad_rank = -1, max_blocks = 0, misuses = 0;
};

State& state() {
  static State all;
  return all;
}

struct Call {
  Comm* comm;
  int peer;
  const void* from;
  void* to;
  std::size_t bytes;
  QueuedStream* stream;
};

// Per thread, like NCCL's groups.
thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local std::vector<Comm*> aborts;

// What a group does on the device.
void run_kernel(Comm& comm, const std::vector<Call>& group) {
  State& all = state();
  std::unique_lock lock(all.mutex);
  FakeClique& clique = *comm.clique;
  const auto box = [&](int from, int to) -> auto& {
    return clique.boxes[static_cast<std::size_t>(from * clique.size + to)];
  };
  std::vector<std::shared_ptr<FakeMessage>> sent;
  for (const Call& call : group) {
    if (call.from == nullptr) continue;
    sent.push_back(std::make_shared<FakeMessage>(FakeMessage{call.from, call.bytes}));
    box(comm.rank, call.peer).push_back(sent.back());
  }
  all.changed.notify_all();
  for (const Call& call : group) {
    if (call.to == nullptr) continue;
    auto& incoming = box(call.peer, comm.rank);
    all.changed.wait(lock,
                     [&] { return comm.aborted || (!incoming.empty() && incoming.front()->bytes == call.bytes); });
    if (comm.aborted) break;
    std::memcpy(call.to, incoming.front()->data, call.bytes);
    incoming.front()->taken = true;
    incoming.pop_front();
    all.changed.notify_all();
  }
  all.changed.wait(lock, [&] {
    for (const auto& message : sent)
      if (!message->taken) return comm.aborted;
    return true;
  });
  for (auto& of_pair : clique.boxes)
    std::erase_if(of_pair, [&](const auto& message) { return std::ranges::find(sent, message) != sent.end(); });
  --comm.kernels;
  all.changed.notify_all();
}

Result get_unique_id(nccl::UniqueId* id) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  *id = {};
  ++all.ids;
  std::memcpy(id->internal, &all.ids, sizeof(all.ids));
  return nccl::success;
}

Result init_rank(Comm** made, int size, nccl::UniqueId id, int rank, nccl::Config* config) {
  State& all = state();
  std::unique_lock lock(all.mutex);
  if (all.fail || config->magic != 0xcafebeef || config->blocking != 1) return invalid_usage;
  all.max_blocks = config->max_blocks;
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  auto& clique = all.cliques[number];
  if (!clique) clique = std::make_shared<FakeClique>(size);
  const std::shared_ptr<FakeClique> mine = clique;
  ++mine->joined;
  all.changed.notify_all();
  all.changed.wait(lock, [&] { return mine->joined == size && !all.hold; });
  all.comms.push_back(Comm{mine, rank});
  *made = &all.comms.back();
  return nccl::success;
}

// With the lock held.
bool usable(Comm* comm) {
  if (!comm->gone) return true;
  ++state().misuses;
  return false;
}

Result destroy(Comm* comm) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (!usable(comm)) return invalid_usage;
  if (comm->kernels > 0) ++all.misuses;
  comm->gone = true;
  return nccl::success;
}

Result group_start() {
  ++depth;
  return nccl::success;
}

Result queue_group(const std::vector<Call>& group) {
  State& all = state();
  Comm& comm = *group.front().comm;
  {
    std::unique_lock lock(all.mutex);
    if (!usable(&comm)) return invalid_usage;
    if (!comm.connected) {
      comm.connected = true;
      ++comm.clique->connected;
      all.changed.notify_all();
      all.changed.wait(
          lock, [&] { return comm.aborted || (comm.clique->connected == comm.clique->size && !all.hold_connect); });
      if (comm.aborted) return remote_error;
    }
    ++comm.kernels;
  }
  group.front().stream->push([&comm, group] { run_kernel(comm, group); });
  return nccl::success;
}

Result group_end() {
  if (--depth > 0) return nccl::success;
  State& all = state();
  Result result = nccl::success;
  const std::vector<Call> group = std::exchange(calls, {});
  if (!group.empty()) result = queue_group(group);
  const std::vector<Comm*> ends = std::exchange(aborts, {});
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] {
    for (const Comm* comm : ends)
      if (comm->kernels > 0) return false;
    return true;
  });
  for (Comm* comm : ends) comm->gone = true;
  return result;
}

Result abort_comm(Comm* comm) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    if (!usable(comm)) return invalid_usage;
    comm->aborted = true;
  }
  all.changed.notify_all();
  aborts.push_back(comm);
  if (depth > 0) return nccl::success;
  depth = 1;
  return group_end();
}

Result get_async_error(Comm* comm, Result* result) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (!usable(comm)) return invalid_usage;
  *result = comm->rank == all.bad_rank ? remote_error : nccl::success;
  return nccl::success;
}

const char* error_string(Result result) { return result == remote_error ? "remote error" : "invalid usage"; }
const char* last_error(Comm*) { return "a cable is loose"; }

Result send(const void* data, std::size_t count, int, int peer, Comm* comm, void* stream) {
  calls.push_back({comm, peer, data, nullptr, count, static_cast<QueuedStream*>(stream)});
  return nccl::success;
}

Result receive(void* data, std::size_t count, int, int peer, Comm* comm, void* stream) {
  calls.push_back({comm, peer, nullptr, data, count, static_cast<QueuedStream*>(stream)});
  return nccl::success;
}

}  // namespace

std::shared_ptr<const nccl::Library> fake_nccl(int version) {
  auto library = std::make_shared<nccl::Library>();
  library->ncclGetUniqueId = get_unique_id;
  library->ncclCommInitRankConfig = init_rank;
  library->ncclCommDestroy = destroy;
  library->ncclCommAbort = abort_comm;
  library->ncclCommGetAsyncError = get_async_error;
  library->ncclGetErrorString = error_string;
  library->ncclGetLastError = last_error;
  library->ncclGroupStart = group_start;
  library->ncclGroupEnd = group_end;
  library->ncclSend = send;
  library->ncclRecv = receive;
  library->version = version;
  library->file = "fake";
  return library;
}

void FakeNccl::hold_init(bool hold) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    all.hold = hold;
  }
  all.changed.notify_all();
}

void FakeNccl::hold_connect(bool hold) {
  State& all = state();
  {
    const std::lock_guard lock(all.mutex);
    all.hold_connect = hold;
  }
  all.changed.notify_all();
}

void FakeNccl::fail_init(bool fail) {
  const std::lock_guard lock(state().mutex);
  state().fail = fail;
}

void FakeNccl::report_error(int rank) {
  const std::lock_guard lock(state().mutex);
  state().bad_rank = rank;
}

int FakeNccl::last_max_blocks() {
  const std::lock_guard lock(state().mutex);
  return state().max_blocks;
}

int FakeNccl::alive() {
  const std::lock_guard lock(state().mutex);
  int count = 0;
  for (const Comm& comm : state().comms) count += comm.gone ? 0 : 1;
  return count;
}

int FakeNccl::kernels() {
  const std::lock_guard lock(state().mutex);
  int count = 0;
  for (const Comm& comm : state().comms) count += comm.kernels;
  return count;
}

int FakeNccl::misuses() {
  const std::lock_guard lock(state().mutex);
  return state().misuses;
}

}  // namespace weft
