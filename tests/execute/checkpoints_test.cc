// Saving and loading on threads: ranks, the threads that write beside steps, and devices that queue their copies.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/execute/queued_cpu_device.h"
#include "tests/execute/ranks.h"
#include "weft/base/file.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/digest.h"
#include "weft/train/save_load.h"

namespace weft {
namespace {

// Copies between host and device are done some time after they were queued: memory that is read, taken again or given back
// before shows.
class LateDevice : public QueuedCpuDevice {
 public:
  void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) override {
    queue_late(stream, device, host, bytes);
  }
  void copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) override {
    queue_late(stream, host, device, bytes);
  }

 private:
  static void queue_late(Stream& stream, void* to, const void* from, std::size_t bytes) {
    static_cast<QueuedStream&>(stream).push([=] {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (bytes > 0) std::memcpy(to, from, bytes);
    });
  }
};

RankCase saved_case(DType dtype) {
  RankCase c = small_case("[*E]-");
  c.ranks = 2;
  c.expert_ranks = 2;
  c.micro_batches = 1;
  c.dtype = dtype;
  c.overlap_updates = true;
  return c;
}

void step(Session& session, const RankCase& c, std::int64_t number) {
  session.step(std::vector{batch_of(c, number, session.options().layout.shard_of(0))}, 1e-2, 0.1);
}

// On every rank; the digest of all parameters and moments after it.
template <class Device>
std::string on_ranks(const RankCase& c, const std::function<void(Session&)>& body) {
  std::string digest;
  LocalCluster(c.ranks).run([&](World& world) {
    Device device;
    Session session(device, options_of(c, &world));
    body(session);
    const std::string own = weight_digest(session) + state_digest(session);
    if (world.rank().value == 0) digest = own;
  });
  return digest;
}

// Two steps, a save, the same beside four more steps.
template <class Device>
std::string saved(const RankCase& c, const std::string& between, const std::string& beside) {
  return on_ranks<Device>(c, [&](Session& session) {
    session.initialise_parameters(5);
    for (int i = 0; i < 2; ++i) step(session, c, i);
    save_checkpoint(session, {between}, {2, 4, 2}, "{}");
    CheckpointSaver saver(session, {beside});
    saver.begin({2, 4, 2}, "{}");
    for (int i = 2; i < 6; ++i) {
      step(session, c, i);
      saver.poll();
    }
    saver.finish();
    EXPECT_FALSE(saver.pending());
  });
}

std::map<std::string, std::string> files_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

class Checkpoints : public testing::TestWithParam<DType> {};

TEST_P(Checkpoints, saved_between_and_beside_steps_are_the_same_on_every_device_and_load_bit_for_bit) {
  const RankCase c = saved_case(GetParam());
  const TemporaryFolder folder;
  const std::string straight = saved<CpuDevice>(c, folder.file("between"), folder.file("beside"));
  EXPECT_EQ(saved<LateDevice>(c, folder.file("queued_between"), folder.file("queued_beside")), straight);
  const std::map<std::string, std::string> files = files_of(folder.file("between/iter_0000002"));
  EXPECT_EQ(files.size(), 3u);  // of two ranks, and the manifest
  for (const char* other : {"beside", "queued_between", "queued_beside"})
    EXPECT_EQ(files_of(folder.file(other) + "/iter_0000002"), files) << other;

  const auto go_on = [&](Session& session) {
    session.initialise_parameters(6);
    const RunPosition position = load_checkpoint(session, RunCheckpoint(folder.file("queued_beside/iter_0000002")), {});
    EXPECT_EQ(position.iteration, 2);
    for (int i = 2; i < 6; ++i) step(session, c, i);
  };
  EXPECT_EQ(on_ranks<CpuDevice>(c, go_on), straight);
  EXPECT_EQ(on_ranks<LateDevice>(c, go_on), straight);
}

INSTANTIATE_TEST_SUITE_P(In, Checkpoints, testing::Values(DType::f32, DType::bf16),
                         [](const auto& of) { return std::string(name_of(of.param)); });

// Gate, up and down of 4.5 MB each: the host gets them in pieces.
template <class Device>
void expect_pieces() {
  RankCase c = small_case("-");
  c.config.mlp.ffn = 70'000;
  c.dtype = DType::bf16;
  Device device;
  Session session(device, options_of(c, nullptr));
  std::size_t parts = 0, pieces = 0, largest = 0;
  for (const ParameterTensor& tensor : session.module().parameters) parts += tensor.parts.size();
  session.set_parameters([&](const ParameterPart& piece, HostTensor& tensor) {
    ++pieces;
    largest = std::max(largest, tensor.bytes.size());
    initialise(piece, 5, tensor);
  });
  EXPECT_EQ(pieces, parts + 3);
  EXPECT_LE(largest, std::size_t{4} << 20);
  LogicalParameters held;
  session.parameters().each(Content::weight, [&](const ParameterPart& piece, const HostTensor& tensor) {
    EXPECT_LE(tensor.bytes.size(), std::size_t{4} << 20);
    EXPECT_TRUE(held.add(piece, tensor));
  });
  for (const ParameterTensor& tensor : session.module().parameters)
    for (const ParameterPart& part : tensor.parts) {
      ParameterPart alone = part;
      alone.place = {};
      HostTensor values(DType::f32, part.shape.elements());
      initialise(alone, 5, values);
      EXPECT_TRUE(held.at(part.identity).bytes == values.bytes) << to_text(part.identity);
    }
}

TEST(LargeParameters, are_set_and_read_in_pieces) { expect_pieces<CpuDevice>(); }
TEST(LargeParameters, are_set_and_read_in_pieces_on_a_device_that_queues_its_work) { expect_pieces<LateDevice>(); }

// Where parts do not fill a tensor, what they leave is zero: it takes part in norms and updates.
template <class Device>
void expect_zero_padding(DType dtype) {
  RankCase c = small_case("-");
  c.micro_batches = 1;
  c.dtype = dtype;
  Device device;
  Session session(device, options_of(c, nullptr));
  const auto ones = [](const ParameterPart& piece, HostTensor& tensor) {
    set_numbers(piece, tensor, [](std::int64_t) { return 1.0; });
  };
  session.set_parameters(ones);
  step(session, c, 0);
  step(session, c, 1);
  Module module = session.module();
  const auto at = std::find_if(module.parameters.begin(), module.parameters.end(),
                               [](const ParameterTensor& tensor) { return tensor.parts.size() == 2; });
  ASSERT_NE(at, module.parameters.end()) << "gate and up";
  const TensorId id(at - module.parameters.begin());
  const std::int64_t kept = at->parts[0].elements();
  at->parts.pop_back();
  const std::unique_ptr<Stream> stream = device.make_stream(1);
  const ModelParameters parameters(device, module, session.storage(), *stream);
  parameters.set_weights(ones);
  const HostTensor weights = parameters.read(id, Content::weight);
  const HostTensor moments = parameters.read(id, Content::first_moment);
  ASSERT_GT(weights.elements(), kept);
  for (std::int64_t i = 0; i < weights.elements(); ++i) {
    ASSERT_EQ(number_at(weights, i), i < kept ? 1 : 0) << i;
    ASSERT_EQ(number_at(moments, i), 0) << i;
  }
}

TEST(Padding, is_zero_after_parameters_are_set) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_zero_padding<CpuDevice>(dtype);
    expect_zero_padding<LateDevice>(dtype);
  }
}

}  // namespace
}  // namespace weft
