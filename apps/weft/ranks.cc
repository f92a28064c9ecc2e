#include "apps/weft/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>

#include <fmt/format.h>

#include "apps/weft/machine.h"
#include "weft/base/error.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/mpi_world.h"
#include "weft/comm/nccl_world.h"
#include "weft/comm/neighbours.h"
#include "weft/comm/tcp_world.h"
#include "weft/train/options_fields.h"
#include "weft/train/rank_agreement.h"

namespace weft {

namespace {

// Prints this rank's error unless another rank has failed with the same one, and prints it.
void print_own(const World& world, const Launch& launch, const std::string& message) {
  try {
    world.throw_if_ended();
  } catch (const PeerError& e) {
    if (e.rank().value != launch.rank && std::string_view(e.what()).ends_with(message)) return;
  }
  fmt::print(stderr, "weft: {}{}\n", launch.rank == 0 ? "" : fmt::format("rank {}: ", launch.rank),
             with_flags(message));
}

// A process of a launcher: one rank.
int run_launched(const Launch& launch, double timeout, Sigterm sigterm, const std::function<int(World&)>& body) {
  const std::unique_ptr<World> world = join_world(launch, timeout, sigterm);
  try {
    return body(*world);
  } catch (const PeerError& e) {  // that rank prints it, too, unless it cannot
    fmt::print(stderr, "weft: rank {}: {}\n", launch.rank, with_flags(e.what()));
    return 1;
  } catch (const AgreedError& e) {  // the same on every rank
    if (launch.rank == 0 || launch.rank == e.rank().value) fmt::print(stderr, "weft: {}\n", with_flags(e.what()));
    return 2;
  } catch (const UserError& e) {
    world->abort(e.what());
    print_own(*world, launch, e.what());
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "weft: rank {}: {}\n", launch.rank, with_flags(e.what()));
    world->abort(e.what());
    return 1;
  }
}

}  // namespace

Launch this_launch(const LayoutOptions& layout) {
  LaunchOptions given;
  if (layout.rank >= 0) given.rank = static_cast<int>(layout.rank);
  if (layout.world_size > 0) given.world_size = static_cast<int>(layout.world_size);
  return find_launch(process_environment(), given);
}

std::unique_ptr<World> join_world(const Launch& launch, double timeout, Sigterm sigterm) {
  std::unique_ptr<World> world =
      launch.mpi ? make_mpi_world(launch, sigterm) : make_tcp_world(launch, process_environment(), timeout, sigterm);
  world->set_timeout(timeout);
  return world;
}

void prepare_ranks(const TrainOptions& options, const Launch& launch) {
  const bool several = launch.size > 1 || options.layout.ranks > 1;
  if (!several || options.execution.device == "cpu") return;
  // CUDA would load a kernel when it is launched first, and may wait for an idle GPU then; NCCL's kernels on it wait for
  // other ranks, which may be about to launch a kernel for the first time.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int run_ranks(const TrainOptions& options, const Launch& launch, const std::string& device, Sigterm sigterm,
              const std::function<int(const RankPlace&)>& body) {
  const bool on_gpu = device == "cuda", emulates = !options.execution.emulate_network.empty();
  const bool nccl = on_gpu && (launch.size > 1 || options.execution.distributed_backend == BackendKind::nccl);
  if (!on_gpu && options.execution.distributed_backend == BackendKind::nccl)
    throw UserError("--distributed-backend nccl: NCCL connects GPUs, and this runs on the CPU; drop the flag");
  if (emulates && on_gpu)
    throw UserError("--emulate-network slows down what goes through host memory, not through GPUs: use --device cpu");
  const auto with_device = [&](World* world, int place) {
    const std::unique_ptr<Device> own = make_device(device, place);
    RankPlace at{world, *own,
                 ranks_on_device(device, static_cast<int>(std::max<std::int64_t>(1, options.layout.ranks)))};
    if (launch.size > 1) {
      const Neighbours found = find_neighbours(*world, *own);
      at.ranks_on_device = found.on_device;
      at.cores = found.cores;
    }
    if (!nccl || !world) return body(at);
    const std::unique_ptr<World> over_nccl = make_nccl_world(*world);
    at.world = over_nccl.get();
    return body(at);
  };
  const double timeout = options.execution.distributed_timeout_minutes * 60;
  if (launch.size > 1) {
    if (emulates)
      throw UserError(
          "--emulate-network works between thread ranks (--ranks N), not between the processes of a launcher");
    return run_launched(launch, timeout, sigterm, [&](World& world) { return with_device(&world, launch.local_rank); });
  }
  const auto ranks = static_cast<int>(options.layout.ranks);
  if (ranks <= 1) return with_device(nullptr, 0);
  LocalOptions local;
  local.timeout = timeout;
  if (emulates) local.network = parse_network(options.execution.emulate_network);
  LocalCluster cluster(ranks, local);
  std::atomic<int> code{0};
  cluster.run([&](World& world) {
    const int own = with_device(&world, static_cast<int>(world.rank().value));
    int seen = code.load();
    while (own > seen && !code.compare_exchange_weak(seen, own)) {
    }
  });
  return code;
}

}  // namespace weft
