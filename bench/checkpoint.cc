// Saving and loading a run's state, against what the disk does, in one process. Lines of JSON:
//  - save: the state of 4 ranks (threads) between steps, over a plain write: as many files of as many bytes, written by as
//    many threads from memory in calls of 4 MiB, and flushed. The goal is 80 % of its speed or more.
//  - load: into the same ranks, over a plain read: the same files, read by as many threads, with the same checksum of all
//    bytes. Both from files that the system does not hold in memory. The goal is 80 %.
//  - beside: steps while a save is being written. The goal is that they take no more processor time than they do alone, plus
//    the writer's own (of a plain write with checksums).
// added_mib: by how much a save or a load of all ranks makes the process larger, buffers and mapped pages included.
//
//   ./run bench checkpoint [FOLDER [GIB_OF_STATE [ROUNDS]]]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/comm/local/cluster.h"
#include "weft/device/cpu/device.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/save_load.h"

namespace weft {
namespace {

constexpr int ranks = 4;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double processor_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// The largest resident size so far, in MiB. Reset by writing 5 to clear_refs.
double peak_memory() {
  const std::string status = read_file("/proc/self/status");
  return static_cast<double>(std::atoll(status.c_str() + status.find("VmHWM:") + 6)) / 1024;
}
void forget_peak() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && ::write(fd, "5", 1) != 1) fmt::print(stderr, "peak memory is that of the whole run\n");
  ::close(fd);
}

// Experts spread over the ranks; 12 bytes per parameter.
SessionOptions session_options(double gib, World& world) {
  SessionOptions o;
  o.config.pattern = "[*E][*E]";
  o.config.hidden = 512;
  o.config.vocabulary = 1024;
  o.config.attention = {.heads = 8, .kv_heads = 8, .head_dim = 64};
  o.config.experts.experts = 64;
  o.config.experts.router.k = 1;
  const double parameters = gib * 0x1p30 / 12;
  o.config.experts.ffn = static_cast<std::int64_t>(parameters / (2 * 64 * 3 * 512)) / 8 * 8;
  o.precision.compute = DType::f32;
  o.batch = 1;
  o.length = 64;
  o.plan.micro_batches = 1;
  o.ranks.world = &world;
  o.layout = Layout::of_data_and_experts(ranks, ranks, world.rank());
  return o;
}

MicroBatch batch_of(std::int64_t step, RankId rank) {
  MicroBatch batch;
  batch.batch = 1;
  batch.length = 64;
  for (std::int64_t i = 0; i < batch.length; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>((31 * i + 7 * step + rank.value) % 1024));
    batch.labels.push_back(static_cast<std::int32_t>((31 * i + 7 * step + rank.value + 1) % 1024));
  }
  return batch;
}

std::vector<std::filesystem::path> rank_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

constexpr std::size_t piece = 4 << 20;

double plain_write(const std::filesystem::path& folder, const std::vector<std::size_t>& sizes, bool checksums) {
  std::filesystem::create_directories(folder);
  std::vector<std::vector<std::byte>> memory(sizes.size());
  in_parallel(sizes.size(), [&](std::size_t i) {
    memory[i].resize(64 << 20);
    for (std::size_t k = 0; k < memory[i].size(); ++k) memory[i][k] = static_cast<std::byte>(k * 2654435761u >> 13);
  });
  const double begin = now();
  in_parallel(sizes.size(), [&](std::size_t i) {
    NewFile out(folder / fmt::format("{}", i));
    Checksum sum;
    for (std::size_t at = 0; at < sizes[i]; at += piece) {
      const std::span<const std::byte> bytes(memory[i].data() + at % memory[i].size(), std::min(piece, sizes[i] - at));
      if (checksums) sum.add(bytes);
      out.write(bytes);
    }
    out.commit();
    if (checksums && sum.value() == 1) fmt::print(stderr, " ");
  });
  const double seconds = now() - begin;
  std::filesystem::remove_all(folder);
  return seconds;
}

// The next read comes from the disk.
void drop_from_memory(const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

double plain_read(const std::vector<std::filesystem::path>& files) {
  drop_from_memory(files);
  const double begin = now();
  in_parallel(files.size(), [&](std::size_t i) {
    const int fd = ::open(files[i].c_str(), O_RDONLY | O_CLOEXEC);
    std::vector<std::byte> buffer(piece);
    Checksum sum;
    for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) > 0;)
      sum.add(std::span(buffer.data(), static_cast<std::size_t>(n)));
    ::close(fd);
    if (sum.value() == 1) fmt::print(stderr, " ");
  });
  return now() - begin;
}

void measure(const std::filesystem::path& folder, double gib, int rounds) {
  const std::filesystem::path dir = folder / "checkpoint-bench";
  std::filesystem::remove_all(dir);
  LocalCluster(ranks).run([&](World& world) {
    const bool first = world.rank().value == 0;
    CpuDevice device;
    Session session(device, session_options(gib, world));
    session.initialise_parameters(5);
    const auto step = [&](std::int64_t number) {
      session.step(std::vector{batch_of(number, world.rank())}, 1e-3, 0.1);
    };
    step(0);
    const RankExchange& all = session.ranks();
    const auto together = [&](const std::function<void()>& work) {
      all.wait_for_all();
      const double begin = now();
      work();
      all.wait_for_all();
      return now() - begin;
    };
    const auto alone = [&](const std::function<void()>& work) {
      all.wait_for_all();
      if (first) work();
      all.wait_for_all();
    };
    std::vector<std::size_t> sizes;
    std::vector<std::filesystem::path> files;
    for (int round = 1; round <= rounds; ++round) {
      if (first) forget_peak();
      all.wait_for_all();
      const double resident = first ? peak_memory() : 0;
      const double save = together([&] { save_checkpoint(session, {.dir = dir, .keep = 1}, {round, round, 1}, "{}"); });
      alone([&] {
        const double added = peak_memory() - resident;
        files = rank_files(checkpoint_folder(dir, round));
        sizes.clear();
        std::size_t bytes = 0;
        for (const auto& file : files) bytes += sizes.emplace_back(std::filesystem::file_size(file));
        const double plain = plain_write(dir / "plain", sizes, false);
        fmt::print(
            "{{\"case\":\"save\",\"gib\":{:.2f},\"files\":{},\"seconds\":{:.3f},\"plain\":{:.3f},\"ratio\":{:.3f},"
            "\"added_mib\":{:.0f}}}\n",
            static_cast<double>(bytes) / 0x1p30, files.size(), save, plain, plain / save, added);
        std::fflush(stdout);
      });
      double plain = 0, before = 0, processor_plain = 0;
      alone([&] {
        const double begin = processor_seconds();
        plain = plain_read(files);
        processor_plain = processor_seconds() - begin;
        drop_from_memory(files);
        forget_peak();
        before = peak_memory();
      });
      const double processor_before = processor_seconds();
      const double load = together(
          [&] { load_checkpoint(session, *open_checkpoint(*find_checkpoint(dir), session.options().config)); });
      if (first) {
        fmt::print(
            "{{\"case\":\"load\",\"seconds\":{:.3f},\"plain\":{:.3f},\"ratio\":{:.3f},\"processor\":{:.3f},"
            "\"processor_plain\":{:.3f},\"added_mib\":{:.0f}}}\n",
            load, plain, plain / load, processor_seconds() - processor_before, processor_plain, peak_memory() - before);
        std::fflush(stdout);
      }
      // Steps alone, as long as a save takes, and beside one.
      step(1);
      CheckpointSaver saver(session, {.dir = dir, .keep = 1});
      const double copy = together([&] { saver.begin({100 + round, round, 1}, "{}"); });
      all.wait_for_all();
      double processor = processor_seconds(), begin = now();
      int steps = 0;
      for (; !saver.poll(); ++steps) step(steps);
      const double beside = processor_seconds() - processor, beside_wall = now() - begin;
      all.wait_for_all();
      processor = processor_seconds(), begin = now();
      for (int i = 0; i < steps; ++i) step(i);
      const double alone_processor = processor_seconds() - processor, alone_wall = now() - begin;
      alone([&] {
        processor = processor_seconds();
        plain_write(dir / "plain", sizes, true);
        const double writer = processor_seconds() - processor;
        fmt::print(
            "{{\"case\":\"beside\",\"copy_seconds\":{:.3f},\"steps\":{},\"wall\":{:.3f},\"wall_alone\":{:.3f},"
            "\"processor\":{:.3f},\"processor_alone\":{:.3f},\"plain_writer\":{:.3f},\"ratio\":{:.3f}}}\n",
            copy, steps, beside_wall, alone_wall, beside, alone_processor, writer, beside / (alone_processor + writer));
        std::fflush(stdout);
      });
    }
  });
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::measure(argc > 1 ? argv[1] : ".", argc > 2 ? std::atof(argv[2]) : 4, argc > 3 ? std::atoi(argv[3]) : 3);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
