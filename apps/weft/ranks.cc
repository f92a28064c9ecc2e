#include "apps/weft/ranks.h"

#include <atomic>
#include <exception>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/mpi_world.h"

namespace weft {

Launch this_launch() { return find_launch(process_environment()); }

int run_ranks(const TrainOptions& options, const Launch& launch, const std::function<int(World*)>& body) {
  const double timeout = options.execution.distributed_timeout_minutes * 60;
  if (launch.size > 1) {
    if (!options.execution.emulate_network.empty())
      throw UserError(
          "--emulate-network works between thread ranks (--ranks N), not between the processes of a launcher");
    const std::unique_ptr<World> world = make_mpi_world(launch);
    world->set_timeout(timeout);
    try {
      return body(world.get());
    } catch (const PeerError& e) {  // that rank says it itself; this is for when it cannot
      fmt::print(stderr, "weft: rank {}: {}\n", launch.rank, e.what());
      return 1;
    } catch (const UserError& e) {  // the same on every rank
      if (launch.rank == 0) fmt::print(stderr, "weft: {}\n", e.what());
      world->abort(e.what());
      return 2;
    } catch (const std::exception& e) {
      fmt::print(stderr, "weft: rank {}: {}\n", launch.rank, e.what());
      world->abort(e.what());
      return 1;
    }
  }
  if (options.layout.ranks <= 1) return body(nullptr);
  LocalOptions local;
  local.timeout = timeout;
  if (!options.execution.emulate_network.empty()) local.network = parse_network(options.execution.emulate_network);
  LocalCluster cluster(static_cast<int>(options.layout.ranks), local);
  std::atomic<int> code{0};
  cluster.run([&](World& world) {
    const int own = body(&world);
    int seen = code.load();
    while (own > seen && !code.compare_exchange_weak(seen, own)) {
    }
  });
  return code;
}

}  // namespace weft
