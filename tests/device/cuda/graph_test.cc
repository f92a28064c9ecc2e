// Graphs: a recorded step does what the same calls do when they are queued, however often and however soon it is launched.
#include <vector>

#include <gtest/gtest.h>

#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

class CudaGraphs : public testing::Test {
 protected:
  static constexpr std::int64_t size = 5000;
  Tensor make(float value) {
    memory_.push_back(device_->allocate(size * sizeof(float)));
    const Tensor made(memory_.back()->data(), DType::f32, {size});
    device_->operations().fill(*stream_, {made, value});
    return made;
  }
  // About as much as a step of a large model: 1000 nodes, over 200 of them fills with zero (which are not kernels). Each
  // of the two streams adds to what the other has added to, so that any other order gives other numbers.
  void queue(const Tensor& sum) {
    const Operations& ops = device_->operations();
    for (int part = 0; part < 60; ++part) {
      ops.fill(*stream_, {x_, 0});
      ops.fill(*stream_, {y_, 1.0 + part % 7});
      for (int i = 0; i < 3; ++i) {
        ops.add(*stream_, {x_, y_, x_});
        fork_->record(*stream_);
        fork_->wait_on(*beside_);
        ops.add(*beside_, {x_, y_, y_});
        join_->record(*beside_);
        ops.fill(*stream_, {z_, 0});  // while the other stream adds
        join_->wait_on(*stream_);
        ops.add(*stream_, {z_, y_, z_});
      }
      ops.add(*stream_, {sum, z_, sum});
      ops.add(*stream_, {sum, x_, sum});
    }
  }
  std::vector<float> read(Stream& stream, const Tensor& x) {
    std::vector<float> values(size);
    device_->copy_out(stream, values.data(), x.data, x.bytes());
    stream.synchronize();
    return values;
  }

  const std::unique_ptr<Device> device_ = make_cuda_device();
  const std::unique_ptr<Stream> stream_ = device_->make_stream(1), beside_ = device_->make_urgent_stream(),
                                reader_ = device_->make_stream(1);
  const std::unique_ptr<Event> fork_ = device_->make_event(), join_ = device_->make_event(),
                               end_ = device_->make_event();
  std::vector<std::unique_ptr<Memory>> memory_;
  Tensor x_ = make(0), y_ = make(0), z_ = make(0);
};

TEST_F(CudaGraphs, LaunchesInARowGiveTheBitsOfQueuedCalls) {
  const Tensor queued = make(0.25), launched = make(0.25);
  const std::unique_ptr<Graph> graph = device_->capture(*stream_, [&] { queue(launched); });
  EXPECT_EQ(graph->why_from_host(), "");
  constexpr int launches = 5;
  for (int i = 0; i < launches; ++i) queue(queued);
  const std::vector<float> expected = read(*stream_, queued);
  // (0 + 8) + (0 + 13) with y = 1: x is 8 and y is 13 after three rounds.
  float sum = 0.25f;
  for (int part = 0; part < 60 * launches; ++part) sum += 21.0f * static_cast<float>(1 + part % 60 % 7);
  EXPECT_EQ(expected, std::vector<float>(size, sum));
  for (int i = 0; i < launches; ++i) graph->launch(*stream_);
  // A stream that waits for an event after the last launch finds it done.
  end_->record(*stream_);
  end_->wait_on(*reader_);
  EXPECT_EQ(read(*reader_, launched), expected);
}

TEST_F(CudaGraphs, TakeTurnsWithQueuedCalls) {
  const Tensor queued = make(0), launched = make(0);
  const std::unique_ptr<Graph> one = device_->capture(*stream_, [&] { queue(launched); }),
                               same = device_->capture(*stream_, [&] { queue(launched); });
  for (int i = 0; i < 5; ++i) queue(queued);
  for (int i = 0; i < 2; ++i) {
    one->launch(*stream_);
    same->launch(*stream_);
  }
  queue(launched);
  EXPECT_EQ(read(*stream_, launched), read(*stream_, queued));
}

}  // namespace
}  // namespace weft
