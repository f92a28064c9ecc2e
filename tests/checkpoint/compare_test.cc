// Two checkpoints, tensor by tensor.
#include "weft/checkpoint/compare.h"

#include <cstring>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/counted_memory.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"

namespace weft {
namespace {

// Elements are a function of their index.
class MadeTensors : public TensorView {
 public:
  using Value = std::function<double(std::int64_t index)>;
  MadeTensors& add(const std::string& name, StoredType type, const Shape& shape, Value value) {
    tensors_.push_back({name, type, shape});
    values_[name] = std::move(value);
    sort();
    return *this;
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const ViewedTensor& made = tensors_[tensor];
    const Value& value = values_.at(made.name);
    const std::size_t size = static_cast<std::size_t>(bits_of(made.type)) / 8;
    const BoxRuns runs(made.shape, box, {});
    for (std::int64_t r = 0; r < runs.size(); ++r)
      for (std::int64_t i = 0; i < runs[r].count; ++i) {
        const double number = value(runs[r].logical + i);
        std::byte* const at = out + static_cast<std::size_t>(runs[r].tensor + i) * size;
        if (is_float(made.type)) {
          store_doubles(&number, made.type, at, 1);
        } else {
          const auto whole = static_cast<std::int64_t>(number);
          std::memcpy(at, &whole, size);
        }
      }
    largest_ = std::max(largest_, box.extent.elements());
  }
  std::int64_t largest() const { return largest_; }

 private:
  std::map<std::string, Value> values_;
  mutable std::int64_t largest_ = 0;
};

double third(std::int64_t index) { return static_cast<double>(index + 1) / 3; }
double eighth(std::int64_t index) { return static_cast<double>(index) / 8; }

TensorComparison compare_one(StoredType a, const MadeTensors::Value& first, StoredType b,
                             const MadeTensors::Value& second) {
  MadeTensors x, y;
  x.add("t", a, {2, 5}, first);
  y.add("t", b, {2, 5}, second);
  const auto results = compare(x, y, {});
  EXPECT_EQ(results.size(), 1u);
  return results.at(0);
}

TEST(Compare, BitsValuesAndRoundedValuesAreToldApart) {
  using enum StoredType;
  EXPECT_EQ(compare_one(f32, third, f32, third).verdict, TensorVerdict::equal);
  EXPECT_EQ(compare_one(i64, eighth, i64, eighth).verdict, TensorVerdict::equal);
  EXPECT_EQ(compare_one(f32, eighth, bf16, eighth).verdict, TensorVerdict::equal_value);
  EXPECT_EQ(compare_one(f16, eighth, f64, eighth).verdict, TensorVerdict::equal_value);
  EXPECT_EQ(compare_one(f32, third, bf16, third).verdict, TensorVerdict::rounded);
  EXPECT_EQ(compare_one(f16, third, f64, third).verdict, TensorVerdict::rounded);
  EXPECT_EQ(compare_one(bf16, third, f16, third).verdict, TensorVerdict::different) << "neither holds the other";
  EXPECT_EQ(compare_one(i64, eighth, i32, eighth).verdict, TensorVerdict::other_type);
  for (const TensorVerdict verdict : {TensorVerdict::equal, TensorVerdict::equal_value, TensorVerdict::rounded})
    EXPECT_TRUE(is_equal(verdict));
  EXPECT_FALSE(is_equal(TensorVerdict::different));
}

TEST(Compare, DifferencesAreMeasured) {
  const TensorComparison t = compare_one(StoredType::f32, eighth, StoredType::f32, [](std::int64_t i) {
    return i == 4 ? 0.75 : i == 8 ? -1 : eighth(i);
  });
  EXPECT_EQ(t.verdict, TensorVerdict::different);
  EXPECT_EQ(t.differing, 2);
  EXPECT_EQ(t.not_finite, 0);
  EXPECT_EQ(t.max_absolute, 2);
  EXPECT_EQ(t.max_relative, 2);
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const TensorComparison odd = compare_one(
      StoredType::f32, [=](std::int64_t i) { return i == 0   ? nan
                                                    : i == 1 ? inf
                                                    : i == 2 ? 1
                                                             : 0; }, StoredType::f32,
      [=](std::int64_t i) {
        return i == 0 ? nan : i == 1 ? -inf : i == 2 ? nan : i == 3 ? 0.5 : 0;
      });
  EXPECT_EQ(odd.differing, 3) << "a NaN of the same bits is the same";
  EXPECT_EQ(odd.not_finite, 2);
  EXPECT_EQ(odd.max_absolute, 0.5);
  EXPECT_EQ(odd.max_relative, 1);
}

TEST(Compare, ZerosOfOtherSignsDifferInBitsAloneAndWhatIsMissingIsNamed) {
  EXPECT_EQ(compare_one(
                StoredType::f32, [](auto) { return 0.0; }, StoredType::f32, [](auto) { return -0.0; })
                .differing,
            10);
  EXPECT_EQ(compare_one(
                StoredType::f32, [](auto) { return 0.0; }, StoredType::f64, [](auto) { return -0.0; })
                .verdict,
            TensorVerdict::equal_value);
  MadeTensors x, y;
  x.add("a", StoredType::f32, {1}, third)
      .add("b", StoredType::f32, {2, 3}, third)
      .add("c", StoredType::f32, {0, 3}, third);
  y.add("b", StoredType::f32, {3, 2}, third)
      .add("c", StoredType::f32, {0, 3}, third)
      .add("d", StoredType::f32, {}, third);
  const auto results = compare(x, y, {});
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].verdict, TensorVerdict::missing);
  EXPECT_EQ(results[1].verdict, TensorVerdict::other_shape);
  EXPECT_EQ(results[2].verdict, TensorVerdict::equal);
  EXPECT_EQ(results[3].verdict, TensorVerdict::unexpected);
  const auto some = compare(x, y, {.wanted = [](const std::string& name) { return name > "b"; }});
  EXPECT_EQ(some.size(), 2u);
}

TEST(Compare, LargeTensorsAreReadInSmallBoxes) {
  constexpr std::int64_t rows = 3, columns = (1 << 20) + 7;
  for (const Shape& shape : {Shape{rows * columns}, Shape{1, rows, columns, 1}}) {
    MadeTensors x, y;
    x.add("t", StoredType::f32, shape, third);
    y.add("t", StoredType::f32, shape,
          [](std::int64_t i) { return i == rows * columns - 1 || i == columns ? -1 : third(i); });
    std::size_t compared = 0;
    const CountedMemory memory;
    const auto results = compare(x, y, {.progress = [&](std::size_t bytes) { compared = bytes; }});
    EXPECT_LT(memory.peak(), std::size_t{10} << 20);
    EXPECT_EQ(results[0].differing, 2);
    EXPECT_LE(x.largest(), 1 << 20);
    EXPECT_EQ(compared, static_cast<std::size_t>(4 * rows * columns));
  }
}

// The bytes of the folder's own tensors, and the same parameters in another form.
TEST(Compare, HuggingFaceFoldersByNameAndByParameter) {
  const ModelFolder folder("qwen3_moe");
  const SafetensorsDirectory a(golden_folder("qwen3_moe")), b(folder.path());
  for (const TensorComparison& t : compare(*view_of(a), *view_of(b), {})) EXPECT_EQ(t.verdict, TensorVerdict::equal);
  RawTensors tensors = raw_tensors(folder.file("model.safetensors"));
  RawTensor& changed = tensors.at("model.layers.0.mlp.experts.3.up_proj.weight");
  changed.bytes[5] = static_cast<char>(changed.bytes[5] ^ 1);
  write_raw(folder.file("model.safetensors"), tensors);
  const HuggingFaceWeights x(golden_folder("qwen3_moe")), y(folder.path());
  std::vector<std::string> different;
  for (const TensorComparison& t : compare(*view_of_parameters(x), *view_of_parameters(y), {}))
    if (t.verdict != TensorVerdict::equal) different.push_back(t.name);
  EXPECT_EQ(different, std::vector<std::string>{"weight/language.main.1.up.3"});
}

// The same model, as Megatron's keys and as a family's names.
TEST(Compare, MegatronCheckpointsByParameter) {
  const HuggingFaceWeights family(golden_folder("qwen3_moe"));
  const ModelConfig& config = family.model().config;
  const MegatronCheckpoint megatron(golden_folder("torch_dist") / "hybrid", config, MasterWeights::where_wider);
  const auto first = view_of_parameters(family), second = view_of_parameters(megatron, config);
  EXPECT_EQ(second->tensors().size(), 3 * first->tensors().size()) << "and moments";
  const auto results =
      compare(*first, *second, {.wanted = [](const std::string& name) { return name.starts_with("weight/"); }});
  EXPECT_EQ(results.size(), first->tensors().size());
  for (const TensorComparison& t : results) EXPECT_EQ(t.verdict, TensorVerdict::equal) << t.name;
}

}  // namespace
}  // namespace weft
