#include "tests/device/cuda/beside.h"

#include <cmath>

#include <fmt/format.h>

namespace weft {

namespace {

std::unique_ptr<Device>& shared_gpu() {
  static std::unique_ptr<Device> device;
  return device;
}

std::size_t bytes_of(const Tensor& t) { return static_cast<std::size_t>(t.rows() * t.stride) * size_of(t.dtype); }

}  // namespace

void Beside::SetUpTestSuite() { gpu(); }

Device& Beside::gpu() {
  if (!shared_gpu()) shared_gpu() = make_cuda_device();
  return *shared_gpu();
}

Beside::Copies Beside::run_on_gpu(const RunOn& on) {
  const std::unique_ptr<Stream> stream = gpu().make_stream(1);
  std::map<const HostTensor*, std::unique_ptr<Memory>> memory;
  on(gpu().operations(), *stream, [&](const HostTensor& x) {
    Tensor view = x.view();
    if (!view.given()) return view;
    std::unique_ptr<Memory>& there = memory[&x];
    if (!there) {
      there = gpu().allocate(bytes_of(view));
      gpu().copy_in(*stream, there->data(), view.data, bytes_of(view));
    }
    view.data = there->data();
    return view;
  });
  stream->synchronize();
  Copies copies;
  for (const auto& [x, there] : memory) {
    HostTensor& copy = copies.emplace(x, *x).first->second;
    gpu().copy_out(*stream, copy.view().data, there->data(), bytes_of(copy.view()));
    stream->synchronize();
  }
  return copies;
}

void Beside::run(const RunOn& on, bool repeatable) {
  got_ = run_on_gpu(on);
  if (repeatable && !sanitizing()) {  // racecheck and memcheck learn nothing new from the same kernels
    for (const auto& [x, copy] : run_on_gpu(on)) EXPECT_TRUE(copy.same_bits(got_.at(x))) << "two runs differ";
  }
  want_.clear();
  TestDevice cpu(2);
  on(cpu.operations(), cpu.stream(), [&](const HostTensor& x) {
    if (!x.view().given()) return Tensor{};
    const auto at = want_.find(&x);
    if (at != want_.end()) return at->second.view();
    const bool real = x.dtype() == DType::f32 || x.dtype() == DType::bf16;
    HostTensor copy = real ? HostTensor(DType::f64, x.view().shape) : x;
    for (std::int64_t i = 0; real && i < x.elements(); ++i) copy.set(i, x.at(i));
    return want_.emplace(&x, std::move(copy)).first->second.view();
  });
}

void Beside::expect(const HostTensor& x, std::int64_t length, const std::vector<double>& magnitudes,
                    double roundings) const {
  const HostTensor& result = got(x);
  const std::vector<double> wanted = want(x);
  double largest = 0;
  for (double value : wanted)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  const double inner =
      unit_roundoff(DType::f32) * static_cast<double>(length + 2) + roundings * unit_roundoff(DType::bf16);
  int shown = 0;
  for (std::size_t i = 0; i < wanted.size() && shown < 3; ++i) {
    const double value = result.at(static_cast<std::int64_t>(i));
    const double bound = 1.01 * (unit_roundoff(x.dtype()) * std::abs(wanted[i]) +
                                 inner * (magnitudes.empty() ? largest : magnitudes[i])) +
                         1e-37;
    if (value == wanted[i] || std::abs(value - wanted[i]) <= bound) continue;
    if (std::isnan(value) && std::isnan(wanted[i])) continue;
    ADD_FAILURE() << fmt::format("element {} of {} is {:.9g}, not {:.9g}: off by {:.3g}, allowed {:.3g}", i,
                                 wanted.size(), value, wanted[i], value - wanted[i], bound);
    ++shown;
  }
  EXPECT_TRUE(result.gaps_intact()) << "written between the rows";
}

void Beside::expect_same(const HostTensor& x) const {
  EXPECT_EQ(got(x).values(), want(x));
  EXPECT_TRUE(got(x).gaps_intact()) << "written between the rows";
}

}  // namespace weft
