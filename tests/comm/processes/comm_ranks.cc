// comm_ranks MODE [RANKS]: the work of the ranks that mpi_test.cc starts under mpirun and tcp_test.cc by itself, or of
// RANKS local ranks. Prints a line per rank and exits with 0, 1 (a rank failed) or 2 (bad arguments).
// WEFT_TEST_TIMEOUT: seconds to connect by TCP.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <thread>

#include <signal.h>
#include <unistd.h>

#include "tests/comm/collective_checks.h"
#include "tests/comm/ranks.h"
#include "weft/base/text.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/mpi_world.h"
#include "weft/comm/tcp_world.h"

namespace weft {
namespace {

void report(World& world, const std::string& text) {
  const std::string line = fmt::format("rank {}: {}\n", world.rank().value, text);
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) throw RunError("stdout is closed");
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Mode {
 public:
  explicit Mode(World& world) : world_(world), rank_(world.rank().value) {}

  void collectives() { report(world_, fmt::format("hash {:016x}", check_collectives(world_))); }

  void lanes() {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int lane = 0; lane < 4; ++lane) groups.push_back(everyone("lane"));
    std::vector<std::uint64_t> hashes(groups.size());
    std::vector<std::thread> threads;
    for (std::size_t lane = 0; lane < groups.size(); ++lane) {
      threads.emplace_back([&, lane] {
        try {
          hashes[lane] = check_collectives(*groups[lane], lane % 2 == 0 ? DType::bf16 : DType::f64);
        } catch (const std::exception& error) {
          world_.abort(error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    world_.throw_if_ended();
    report(world_, fmt::format("lanes {:016x} {:016x} {:016x} {:016x}", hashes[0], hashes[1], hashes[2], hashes[3]));
  }

  void large() {  // far larger than what MPI buffers
    const auto group = everyone("large");
    const std::int64_t count = 3'000'001;
    std::vector<float> values(static_cast<std::size_t>(count), 0.5f + static_cast<float>(rank_));
    const HostTensor data(values);
    group->all_reduce(stream_, data, data, Reduction::sum);
    const float expected = 0.5f * static_cast<float>(world_.size() * world_.size());
    for (const float value : data.values<float>())
      if (value != expected) throw RunError("large all_reduce gave {} instead of {}", value, expected);
    report(world_, "large");
  }

  void idle() {  // waiting for a late rank uses little CPU time
    const auto group = everyone("idle");
    group->barrier(stream_);
    if (rank_ == 1) sleep_seconds(1.5);
    const double before = processor_seconds();
    group->barrier(stream_);
    report(world_, fmt::format("processor {:.4f} s", processor_seconds() - before));
  }

  void abort() {
    const auto group = everyone("all");
    group->barrier(stream_);
    if (rank_ == 2) throw RunError("the loss is a potato");
    group->barrier(stream_);
  }

  void counts() {
    const auto group = everyone("ep");
    std::vector<std::int64_t> send_counts(static_cast<std::size_t>(world_.size()), 2), receive_counts = send_counts;
    if (rank_ == 1) send_counts[2] = wrong_count_;
    const HostTensor send(DType::f32, 100), receive(DType::f32, 100);
    group->all_to_all(stream_, send, send_counts, receive, receive_counts);
    group->barrier(stream_);
  }
  void counts_less() {
    wrong_count_ = 0;
    counts();
  }

  void groups() {  // ranks make different groups
    world_.set_timeout(2);
    const auto group = everyone(rank_ == 1 ? "gather" : "reduce");
  }

  void stall() {
    const auto group = everyone("dp");
    world_.set_timeout(0.7);
    world_.set_status([this] { return fmt::format("micro-batch {}, layer 2", rank_); });
    group->barrier(stream_);
    for (int i = 0; rank_ == 2 && i < 3000; ++i) {  // it computes, and sometimes checks whether the run has ended
      sleep_seconds(0.01);
      world_.throw_if_ended();
    }
    const HostTensor data(DType::f32, 100'000);
    group->all_reduce(stream_, data, data, Reduction::sum);
  }

  void late() {  // rank 0 has work of its own that takes longer than the timeout
    const auto group = everyone("dp");
    world_.set_timeout(0.3);
    group->barrier(stream_);
    if (rank_ == 0) sleep_seconds(1.5);
    report(world_, "done");
  }

  void kill() {
    const auto group = everyone("dp");
    world_.set_status([this] { return fmt::format("micro-batch {}, layer 3", rank_); });
    group->barrier(stream_);
    if (rank_ == 1) ::kill(getpid(), SIGKILL);
    group->barrier(stream_);
  }
  void kill_sending() {  // in the middle of messages between all ranks
    const auto group = everyone("dp");
    group->barrier(stream_);
    const HostTensor data(DType::f32, 4'000'000);
    std::thread killer;
    if (rank_ == 1) {
      killer = std::thread([] {
        sleep_seconds(0.02);
        ::kill(getpid(), SIGKILL);
      });
    }
    while (true) group->all_reduce(stream_, data, data, Reduction::sum);
  }

  // Every rank but 0 runs ahead of it with sends, small and large, on one lane, while another lane works.
  void ahead() {
    const auto some = everyone("some"), other = everyone("other");
    std::thread lane([&] {
      for (int i = 0; i < 50; ++i) other->barrier(stream_);
    });
    const std::vector<std::int64_t> counts{3, 100'000, 0, 7, 2'000'000, 11};
    const auto value = [](int rank, std::size_t message) {
      return static_cast<float>(rank * 100) + static_cast<float>(message);
    };
    for (std::size_t m = 0; m < counts.size(); ++m) {
      if (rank_ != 0) {
        const HostTensor data(std::vector<float>(static_cast<std::size_t>(counts[m]), value(rank_, m)));
        some->send(stream_, data, 0);
      } else {
        if (m == 0) sleep_seconds(0.1);
        for (int from = 1; from < world_.size(); ++from) {
          const HostTensor data(DType::f32, counts[m]);
          some->receive(stream_, data, from);
          for (const float got : data.values<float>())
            if (got != value(from, m)) throw RunError("message {} of rank {} holds {}", m, from, got);
        }
      }
    }
    lane.join();
    report(world_, "ahead");
  }

  void stop() {  // rank 1 gets SIGTERM
    const auto group = everyone("dp");
    world_.set_status([this] { return fmt::format("micro-batch {}, layer 4", rank_); });
    group->barrier(stream_);
    if (rank_ == 1) ::kill(getpid(), SIGTERM);
    if (rank_ == 1) sleep_seconds(0.2);
    group->barrier(stream_);
    group->barrier(stream_);
  }

  void run(const std::string& name) {
    const std::map<std::string, void (Mode::*)()> modes{{"collectives", &Mode::collectives},
                                                        {"lanes", &Mode::lanes},
                                                        {"large", &Mode::large},
                                                        {"idle", &Mode::idle},
                                                        {"abort", &Mode::abort},
                                                        {"counts", &Mode::counts},
                                                        {"counts_less", &Mode::counts_less},
                                                        {"groups", &Mode::groups},
                                                        {"stall", &Mode::stall},
                                                        {"late", &Mode::late},
                                                        {"kill", &Mode::kill},
                                                        {"kill_sending", &Mode::kill_sending},
                                                        {"ahead", &Mode::ahead},
                                                        {"stop", &Mode::stop}};
    const auto found = modes.find(name);
    if (found == modes.end()) throw UserError("there is no mode '{}'", name);
    (this->*found->second)();
  }

 private:
  std::unique_ptr<Communicator> everyone(const std::string& name) {
    return world_.make_group(ranks_below(world_.size()), name);
  }

  World& world_;
  int rank_;
  std::int64_t wrong_count_ = 5;
  HostStream stream_;
};

int run_rank(World& world, const std::string& mode) {
  try {
    Mode(world).run(mode);
    return 0;
  } catch (const std::exception& error) {
    world.abort(error.what());
    report(world, fmt::format("error: {}", error.what()));
    return 1;
  }
}

int run(int argc, char** argv) {
  if (argc < 2) throw UserError("usage: comm_ranks MODE [RANKS]");
  std::int64_t ranks = 0;
  if (argc > 2 && parse_int(argv[2], ranks)) {
    LocalCluster cluster(static_cast<int>(ranks));
    std::atomic<int> worst{0};
    cluster.run([&](World& world) {
      if (run_rank(world, argv[1]) != 0) worst = 1;
    });
    return worst;
  }
  const Launch launch = find_launch(process_environment());
  const char* timeout = std::getenv("WEFT_TEST_TIMEOUT");
  const std::unique_ptr<World> world =
      launch.mpi ? make_mpi_world(launch)
                 : make_tcp_world(launch, process_environment(), timeout == nullptr ? 600 : std::atof(timeout));
  return run_rank(*world, argv[1]);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run(argc, argv);
  } catch (const weft::UserError& error) {
    std::fprintf(stderr, "comm_ranks: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_ranks: %s\n", error.what());
    return 1;
  }
}
