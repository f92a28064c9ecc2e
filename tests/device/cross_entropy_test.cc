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

// Columns [first, first + count) of a matrix, with more after them that must not matter.
HostTensor columns_from(const HostTensor& all, std::int64_t rows, std::int64_t first, std::int64_t count,
                        std::int64_t columns) {
  HostTensor part(all.dtype(), Shape{rows, columns}, columns + 1);
  part.fill(1e30);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < count; ++c) part.set(r, c, all.at(r, first + c));
  return part;
}

// Any split of the vocabulary, also with ranks that have none of it, gives the loss and the gradients of the whole.
TEST(CrossEntropy, OfASplitVocabularyIsThatOfTheWhole) {
  struct Case {
    std::int64_t rows, vocabulary, ranks, each;  // columns of a rank, of which the last ranks may use fewer
  };
  for (DType dtype : {DType::f32, DType::f64})
    for (DType gradient : {dtype, dtype == DType::f32 ? DType::bf16 : dtype})
      for (const Case& c :
           {Case{1, 1, 2, 1}, Case{5, 17, 2, 9}, Case{6, 5, 4, 2}, Case{23, 1000, 4, 250}, Case{9, 5000, 3, 1700}}) {
        SCOPED_TRACE(
            fmt::format("{} {} [{}, {}] over {}", name_of(dtype), name_of(gradient), c.rows, c.vocabulary, c.ranks));
        const HostTensor all = HostTensor::normal(dtype, Shape{c.rows, c.vocabulary}, "logits", 3);
        const HostTensor labels = labels_for(c.rows, c.vocabulary), scale = HostTensor::of(dtype, Shape{1}, {0.37});
        HostTensor whole_loss = HostTensor::of(dtype, Shape{1}, {2}), whole(dtype, Shape{c.rows, c.vocabulary});
        TestDevice plain;
        plain.operations().cross_entropy(plain.stream(),
                                         {all, labels, scale, whole_loss, whole, {}, c.vocabulary, Store::add});
        everywhere(
            [&](TestDevice& device) {
              HostTensor statistics(DType::f64, Shape{c.ranks, c.rows, 3});
              const auto first_of = [&](std::int64_t k) { return std::min(k * c.each, c.vocabulary); };
              const auto count_of = [&](std::int64_t k) { return std::min(c.each, c.vocabulary - first_of(k)); };
              for (std::int64_t k = 0; k < c.ranks; ++k) {
                const HostTensor own = columns_from(all, c.rows, first_of(k), count_of(k), c.each);
                device.operations().vocabulary_statistics(
                    device.stream(), {own, labels, statistics.view().slice_rows(k, 1), first_of(k), count_of(k)});
              }
              std::vector<HostTensor> results;
              for (std::int64_t k = 0; k < c.ranks; ++k) {
                const HostTensor own = columns_from(all, c.rows, first_of(k), count_of(k), c.each);
                HostTensor loss = HostTensor::of(dtype, Shape{1}, {2}), d(gradient, Shape{c.rows, c.each}, c.each + 2);
                device.operations().split_cross_entropy(
                    device.stream(), {own, labels, scale, statistics, loss, d, first_of(k), count_of(k), Store::add});
                results.push_back(loss);
                results.push_back(d);
              }
              return results;
            },
            [&](const std::vector<HostTensor>& got) {
              for (std::int64_t k = 0; k < c.ranks; ++k) {
                const HostTensor &loss = got[static_cast<std::size_t>(2 * k)],
                                 &d = got[static_cast<std::size_t>(2 * k + 1)];
                EXPECT_TRUE(loss.same_bits(got[0])) << "ranks disagree about the loss";
                expect_close(loss, {whole_loss.at(0)}, 160, {24.0 * static_cast<double>(c.rows)});
                std::vector<double> want, bounds;
                for (std::int64_t r = 0; r < c.rows; ++r)
                  for (std::int64_t v = 0; v < c.each; ++v) {
                    const bool counts = k * c.each + v < c.vocabulary;
                    want.push_back(counts ? whole.at(r, k * c.each + v) : 0);
                    bounds.push_back(counts ? std::abs(want.back()) + 1e-30 : 0);
                  }
                expect_close(d, want, 200, bounds);
              }
            });
      }
}

}  // namespace
}  // namespace weft
