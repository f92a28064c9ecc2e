#include "weft/comm/nccl/setup.h"

#include <algorithm>
#include <array>

#include <unistd.h>

#include "weft/base/error.h"

namespace weft::nccl {

namespace {

using Text = std::array<char, 256>;

// The largest number of members whose `mine` is the same.
int most_alike(Communicator& host, const std::string& mine) {
  Text text{};
  std::copy_n(mine.begin(), std::min(mine.size(), text.size() - 1), text.begin());
  std::vector<Text> all(static_cast<std::size_t>(host.size()));
  HostStream stream;
  const auto bytes = static_cast<std::int64_t>(text.size());
  host.all_gather(stream, Tensor(text.data(), DType::u8, Shape{bytes}),
                  Tensor(all.data(), DType::u8, Shape{bytes * host.size()}));
  std::ptrdiff_t most = 1;
  for (const Text& each : all) most = std::max(most, std::ranges::count(all, each));
  return static_cast<int>(most);
}

}  // namespace

void run_watched(Watchdog& watchdog, const Communicator& host, const std::string& what, std::function<void()> work) {
  constexpr std::chrono::seconds last_wait(2);
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  std::thread thread([state, work = std::move(work)] {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(state->mutex);
    state->error = error;
    state->done = true;
    state->changed.notify_all();
  });
  std::vector<RankId> others(host.members().begin(), host.members().end());
  others.erase(others.begin() + host.rank());
  const auto begin = QueuedCollectives::Clock::now();
  while (true) {
    {
      std::unique_lock lock(state->mutex);
      if (state->changed.wait_for(lock, std::chrono::milliseconds(10), [&] { return state->done; })) break;
    }
    watchdog.require_in_time(what, std::chrono::duration<double>(QueuedCollectives::Clock::now() - begin).count(),
                             others);
    if (!watchdog.ended()) continue;
    watchdog.abort_all();  // including the one being connected, whose call then returns
    std::unique_lock lock(state->mutex);
    if (state->changed.wait_for(lock, last_wait, [&] { return state->done; })) {
      lock.unlock();
      thread.join();
    } else {
      thread.detach();
    }
    watchdog.throw_if_ended();
  }
  thread.join();
  if (!state->error) return;
  try {
    std::rethrow_exception(state->error);
  } catch (const std::exception& error) {
    watchdog.fail(error.what());
    throw;
  }
}

Setup make_comm(Watchdog& watchdog, Communicator& host, Device& device) {
  const std::shared_ptr<const Library> library = watchdog.shared_library();
  const int size = host.size(), rank = host.rank();
  Config config;
  char machine[128] = {};
  gethostname(machine, sizeof(machine) - 1);
  const std::string gpu = fmt::format("{} {}", device.identity(), machine);
  const int sharing = most_alike(host, gpu);
  if (sharing > 1) {
    if (library->version < first_with_shared_gpus)
      throw UserError(
          "group '{}' has {} ranks on one GPU, which NCCL {} ({}) refuses: start one rank for each GPU, or name NCCL "
          "2.30 or newer in WEFT_NCCL, or run the ranks of this machine as threads (--ranks), which need no NCCL",
          host.name(), sharing, version_text(library->version), library->file);
    // Their kernels of several lanes must all fit on the GPU at once.
    config.max_blocks = std::clamp(32 / sharing, 1, 8);
  }
  const bool threads_share_gpu = sharing > 1 && most_alike(host, fmt::format("{} {}", getpid(), gpu)) > 1;
  UniqueId id{};
  if (rank == 0) {
    try {
      library->check(library->ncclGetUniqueId(&id));
    } catch (const Error& error) {
      watchdog.fail(error.what());
      throw;
    }
  }
  HostStream host_stream;
  host.broadcast(host_stream, Tensor(id.internal, DType::u8, Shape{sizeof(id.internal)}), 0);
  host.barrier(host_stream);  // all members are here, so none waits inside NCCL for a missing one

  struct Made {
    Comm* comm = nullptr;
    Config config;
  };
  const auto made = std::make_shared<Made>(Made{nullptr, config});
  run_watched(watchdog, host, fmt::format("making group '{}' with NCCL", host.name()), [=, &device] {
    device.bind_thread();
    library->check(library->ncclCommInitRankConfig(&made->comm, size, id, rank, &made->config));
  });
  return {std::make_shared<CommHandle>(device, host.name(), made->comm), threads_share_gpu};
}

}  // namespace weft::nccl
