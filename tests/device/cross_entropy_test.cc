#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

HostTensor labels_for(std::int64_t rows, std::int64_t vocabulary) {
  HostTensor labels(DType::i32, Shape{rows});
  for (std::int64_t r = 0; r < rows; ++r) labels.set(r, r % 4 == 2 ? -1.0 : static_cast<double>(r * 37 % vocabulary));
  return labels;
}

TEST(CrossEntropy, LossAndGradientAreTheFormula) {
  struct Case {
    std::int64_t rows, vocabulary, columns;
  };
  for (DType dtype : storages)
    for (DType gradient : {dtype, dtype == DType::f32 ? DType::bf16 : dtype})
      for (const Case& c : {Case{1, 1, 1}, Case{1, 3, 3}, Case{5, 17, 20}, Case{6, 65, 65}, Case{23, 1000, 1024},
                            Case{11, 5000, 5000}}) {
        SCOPED_TRACE(
            fmt::format("{} {} [{}, {} of {}]", name_of(dtype), name_of(gradient), c.rows, c.vocabulary, c.columns));
        const DType acc = accumulator_of(dtype);
        HostTensor logits = HostTensor::normal(dtype, Shape{c.rows, c.columns}, "logits", 3, c.columns + 2);
        for (std::int64_t r = 0; r < c.rows; ++r)  // padding columns must not matter
          for (std::int64_t v = c.vocabulary; v < c.columns; ++v) logits.set(r, v, 1e30);
        const HostTensor labels = labels_for(c.rows, c.vocabulary);
        const HostTensor scale = HostTensor::of(acc, Shape{1}, {0.37});
        const double factor = scale.at(0);
        std::vector<double> losses, dlogits, bounds;
        double sum = 0;
        for (std::int64_t r = 0; r < c.rows; ++r) {
          const auto label = static_cast<std::int64_t>(labels.at(r));
          double highest = -1e300, total = 0;
          for (std::int64_t v = 0; v < c.vocabulary; ++v) highest = std::max(highest, logits.at(r, v));
          for (std::int64_t v = 0; v < c.vocabulary; ++v) total += std::exp(logits.at(r, v) - highest);
          losses.push_back(label < 0 ? 0 : std::log(total) + highest - logits.at(r, label));
          sum += losses.back();
          for (std::int64_t v = 0; v < c.columns; ++v) {
            const double p = v < c.vocabulary && label >= 0 ? std::exp(logits.at(r, v) - highest) / total : 0;
            dlogits.push_back(factor * (p - (v == label && label >= 0 ? 1 : 0)));
            bounds.push_back(factor * (p + (v == label && label >= 0 ? 1 : 0)));
          }
        }
        everywhere(
            [&](TestDevice& device) {
              HostTensor loss(acc, Shape{1}), more = HostTensor::of(acc, Shape{1}, {2}), row_losses(acc, Shape{c.rows});
              HostTensor got(gradient, Shape{c.rows, c.columns}, c.columns + 1), in_place = logits;
              CrossEntropy op{logits, labels, scale, loss, got, row_losses, c.vocabulary};
              device.operations().cross_entropy(device.stream(), op);
              op.loss = more, op.dlogits = op.row_losses = {}, op.store = Store::add;
              device.operations().cross_entropy(device.stream(), op);
              op.logits = op.dlogits = in_place;
              if (gradient == dtype) {
                device.operations().cross_entropy(device.stream(), op);
                EXPECT_EQ(in_place.values(), got.values());
              }
              return std::vector<HostTensor>{loss, row_losses, got, more};
            },
            [&](const std::vector<HostTensor>& got) {
              // A row's loss: the sum's relative error (blocks of 2048 in 32 lanes: 64 additions and 5 halvings) and
              // a difference of logits up to 24.
              const std::vector<double> magnitudes(losses.size(), 24);
              expect_close(got[1], losses, 80, magnitudes);
              expect_close(got[0], {factor * sum}, 80, {factor * 24 * static_cast<double>(c.rows)});
              expect_close(got[2], dlogits, 80 + 24, bounds);
              const double all = (gradient == dtype ? 2 : 1) * factor * sum + 2;
              expect_close(got[3], {all}, 160, {factor * 24 * static_cast<double>(c.rows) + 2});
            });
      }
}

TEST(CrossEntropy, GradientAgreesWithDifferences) {
  TestDevice device;
  const std::int64_t rows = 5, vocabulary = 13, columns = 16;
  HostTensor logits = HostTensor::normal(DType::f64, Shape{rows, columns}, "logits");
  const HostTensor labels = labels_for(rows, vocabulary), scale = HostTensor::of(DType::f64, Shape{1}, {0.7});
  HostTensor loss(DType::f64, Shape{1}), dlogits(DType::f64, Shape{rows, columns});
  CrossEntropy op{logits, labels, scale, loss, {}, {}, vocabulary};
  const auto value = [&] {
    device.operations().cross_entropy(device.stream(), op);
    return loss.at(0);
  };
  CrossEntropy with = op;
  with.dlogits = dlogits;
  device.operations().cross_entropy(device.stream(), with);
  check_gradient(value, logits, dlogits.values());
}

TEST(CrossEntropy, ExtremeLogits) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for_each_device([&](TestDevice& device) {
    for (DType dtype : {DType::f32, DType::f64}) {
      const HostTensor scale = HostTensor::of(dtype, Shape{1}, {1}), labels = HostTensor::integers({1});
      const auto loss_of = [&](const std::vector<double>& values, HostTensor& dlogits) {
        const HostTensor logits = HostTensor::of(dtype, Shape{1, 4}, values);
        HostTensor loss(dtype, Shape{1});
        dlogits = HostTensor(dtype, Shape{1, 4});
        device.operations().cross_entropy(device.stream(), {logits, labels, scale, loss, dlogits, {}, 4});
        return loss.at(0);
      };
      HostTensor d;
      EXPECT_NEAR(loss_of({1e30, 1e30, 0, -1e30}, d), std::log(2), 1e-6);
      EXPECT_NEAR(d.at(0), 0.5, 1e-6);
      EXPECT_NEAR(d.at(1), -0.5, 1e-6);
      EXPECT_EQ(d.at(3), 0);
      EXPECT_NEAR(loss_of({-infinity, 2, -infinity, -infinity}, d), 0, 1e-6);  // masked logits
      EXPECT_EQ(d.at(0), 0);
      EXPECT_TRUE(std::isnan(loss_of({0, 1, nan, 2}, d)));
      EXPECT_TRUE(std::isnan(loss_of({0, 1, infinity, 2}, d)));
    }
  });
}

TEST(CrossEntropy, RefusesALabelBeyondTheVocabulary) {
  TestDevice device;
  const HostTensor logits(DType::f32, Shape{1, 4}), labels = HostTensor::integers({3}), one(DType::f32, Shape{1});
  try {
    device.operations().cross_entropy(device.stream(), {logits, labels, one, one, {}, {}, 3});
    FAIL();
  } catch (const BugError& error) {
    EXPECT_STREQ(error.what(), "cross_entropy: a label beyond the vocabulary");
  }
}

}  // namespace
}  // namespace weft
