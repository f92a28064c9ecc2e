#include "weft/execute/product_peak.h"

#include <algorithm>
#include <vector>

#include "weft/base/random.h"
#include "weft/device/operations.h"

namespace weft {

double measure_product_peak(Device& device, DType dtype, std::int64_t size) {
  const Operations& ops = device.operations();
  const std::unique_ptr<Stream> stream = device.make_stream(1);
  const std::int64_t count = size * size, block = std::min<std::int64_t>(count, 1 << 18);
  const std::unique_ptr<Memory> memory = device.allocate(static_cast<std::size_t>(3 * count) * size_of(dtype));
  const std::unique_ptr<Memory> random = device.allocate(static_cast<std::size_t>(block) * sizeof(float));
  std::vector<float> numbers(static_cast<std::size_t>(block));
  const std::uint64_t key = random_key(0, "product_peak");
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(random_normal(key, i));
  device.copy_in(*stream, random->data(), numbers.data(), numbers.size() * sizeof(float));
  // Not zeros: they need less power and would run faster.
  const Tensor from(random->data(), DType::f32, {block});
  const Tensor both(memory->data(), dtype, {2 * count});
  for (std::int64_t at = 0; at < 2 * count; at += block) {
    const std::int64_t n = std::min(block, 2 * count - at);
    ops.cast(*stream, {from.slice_rows(0, n), both.slice_rows(at, n)});
  }
  const auto matrix = [&](std::int64_t i) {
    return Tensor(memory->data() + static_cast<std::size_t>(i * count) * size_of(dtype), dtype, {size, size});
  };
  const Matmul product{matrix(0), matrix(1), matrix(2), Transposed::no, Transposed::yes};
  for (int i = 0; i < 3; ++i) ops.matmul(*stream, product);
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    const std::unique_ptr<Event> begin = device.make_event(), end = device.make_event();
    begin->record(*stream);
    ops.matmul(*stream, product);
    end->record(*stream);
    stream->synchronize();
    seconds.push_back(end->seconds_since(*begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  const auto n = static_cast<double>(size);
  return seconds[3] > 0 ? 2 * n * n * n / seconds[3] : 0;
}

}  // namespace weft
