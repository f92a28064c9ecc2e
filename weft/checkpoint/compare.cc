#include "weft/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 20;  // of a box in memory

// Cuts a shape into boxes of at most `most_elements`, each row-major a range of it.
void each_slab(const Shape& shape, const std::function<void(const Box&)>& visit) {
  if (shape.elements() == 0) return;
  int dim = 0;  // is cut; those before it go one by one, those after it stay whole
  std::int64_t inner = shape.elements();
  while (dim < shape.dims() && (inner /= shape[dim]) > most_elements) ++dim;
  if (dim == shape.dims()) return visit(Box::whole(shape));  // a scalar
  const std::int64_t rows = std::max<std::int64_t>(1, most_elements / inner);
  Box box;
  while (true) {
    const auto at = static_cast<std::size_t>(dim);
    for (box.begin[at] = 0; box.begin[at] < shape[dim]; box.begin[at] += rows) {
      box.extent = {};
      for (int d = 0; d < shape.dims(); ++d)
        box.extent.append(d < dim ? 1 : d > dim ? shape[d] : std::min(rows, shape[d] - box.begin[at]));
      visit(box);
    }
    box.begin[at] = 0;
    int d = dim - 1;
    for (; d >= 0 && ++box.begin[static_cast<std::size_t>(d)] == shape[d]; --d)
      box.begin[static_cast<std::size_t>(d)] = 0;
    if (d < 0) return;
  }
}

std::size_t size_of(StoredType type) { return static_cast<std::size_t>(bits_of(type)) / 8; }

class Comparer {
 public:
  Comparer(const TensorView& first, const TensorView& second, const CompareOptions& options)
      : first_(first), second_(second), options_(options) {}

  TensorComparison compare(std::size_t a, std::size_t b) {
    const ViewedTensor &first = first_.tensors()[a], &second = second_.tensors()[b];
    TensorComparison result{first.name, TensorVerdict::equal, first, second};
    const bool floats = is_float(first.type) && is_float(second.type);
    if (first.shape != second.shape) {
      result.verdict = TensorVerdict::other_shape;
    } else if (first.type != second.type && !floats) {
      result.verdict = TensorVerdict::other_type;
    } else {
      if (bits_of(first.type) % 8 != 0)
        throw UserError("tensor '{}': elements of {} are not compared: several share a byte", first.name,
                        name_of(first.type));
      same_ = first.type == second.type;
      wider_ = bits_of(first.type) >= bits_of(second.type);
      equal_bits_ = equal_rounded_ = true;
      each_slab(first.shape, [&](const Box& box) { compare(a, b, box, result); });
      result.verdict = same_ && equal_bits_              ? TensorVerdict::equal
                       : !same_ && result.differing == 0 ? TensorVerdict::equal_value
                       : !same_ && equal_rounded_        ? TensorVerdict::rounded
                                                         : TensorVerdict::different;
    }
    return result;
  }

 private:
  void compare(std::size_t a, std::size_t b, const Box& box, TensorComparison& result) {
    const StoredType type_a = result.first.type, type_b = result.second.type;
    const std::int64_t count = box.extent.elements();
    bytes_a_.resize(static_cast<std::size_t>(count) * size_of(type_a));
    bytes_b_.resize(static_cast<std::size_t>(count) * size_of(type_b));
    first_.read(a, box, bytes_a_.data());
    second_.read(b, box, bytes_b_.data());
    done_ += bytes_a_.size();
    if (options_.progress) options_.progress(done_);
    if (same_ && bytes_a_ == bytes_b_) return;
    equal_bits_ = false;
    constexpr std::int64_t block = 4096;
    for (std::int64_t i = 0; i < count; i += block) {
      const std::int64_t here = std::min(block, count - i);
      compare_block(bytes_a_.data() + static_cast<std::size_t>(i) * size_of(type_a),
                    bytes_b_.data() + static_cast<std::size_t>(i) * size_of(type_b), here, result);
    }
  }

  void compare_block(const std::byte* a, const std::byte* b, std::int64_t count, TensorComparison& result) {
    const StoredType type_a = result.first.type, type_b = result.second.type;
    if (!is_float(type_a)) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * size_of(type_a);
        result.differing += std::memcmp(a + at, b + at, size_of(type_a)) != 0;
      }
      return;
    }
    const auto elements = static_cast<std::size_t>(count);
    doubles_a_.resize(elements);
    doubles_b_.resize(elements);
    WEFT_CHECK(convert(type_a, a, DType::f64, doubles_a_.data(), count) &&
                   convert(type_b, b, DType::f64, doubles_b_.data(), count),
               "floats become doubles");
    for (std::size_t i = 0; i < elements; ++i) {
      const double x = doubles_a_[i], y = doubles_b_[i];
      const bool differ = same_ ? std::memcmp(a + i * size_of(type_a), b + i * size_of(type_a), size_of(type_a)) != 0
                                : !(x == y || (std::isnan(x) && std::isnan(y)));
      if (!differ) continue;
      ++result.differing;
      if (!std::isfinite(x) || !std::isfinite(y)) {
        ++result.not_finite;
        continue;
      }
      const double difference = std::abs(x - y), larger = std::max(std::abs(x), std::abs(y));
      result.max_absolute = std::max(result.max_absolute, difference);
      if (larger > 0) result.max_relative = std::max(result.max_relative, difference / larger);
    }
    if (!same_ && equal_rounded_) {
      const StoredType narrow = wider_ ? type_b : type_a;
      const std::byte* const there = wider_ ? b : a;
      rounded_.resize(elements * size_of(narrow));
      store_doubles((wider_ ? doubles_a_ : doubles_b_).data(), narrow, rounded_.data(), count);
      equal_rounded_ = std::memcmp(rounded_.data(), there, rounded_.size()) == 0;
    }
  }

  const TensorView &first_, &second_;
  const CompareOptions& options_;
  std::vector<std::byte> bytes_a_, bytes_b_, rounded_;
  std::vector<double> doubles_a_, doubles_b_;
  std::size_t done_ = 0;
  bool same_ = false, wider_ = false;              // types; the first has the wider one
  bool equal_bits_ = true, equal_rounded_ = true;  // so far
};

}  // namespace

std::string_view name_of(TensorVerdict verdict) {
  switch (verdict) {
    case TensorVerdict::equal:
      return "equal bit for bit";
    case TensorVerdict::equal_value:
      return "equal in value";
    case TensorVerdict::rounded:
      return "equal after rounding";
    case TensorVerdict::different:
      return "different";
    case TensorVerdict::other_type:
      return "of another type";
    case TensorVerdict::other_shape:
      return "of another shape";
    case TensorVerdict::missing:
      return "missing";
    case TensorVerdict::unexpected:
      return "unexpected";
  }
  return "";
}

bool is_equal(TensorVerdict verdict) { return verdict <= TensorVerdict::rounded; }

std::vector<TensorComparison> compare(const TensorView& first, const TensorView& second,
                                      const CompareOptions& options) {
  Comparer comparer(first, second, options);
  const std::vector<ViewedTensor>&a = first.tensors(), &b = second.tensors();
  std::vector<TensorComparison> results;
  for (std::size_t i = 0, k = 0; i < a.size() || k < b.size();) {
    const bool only_first = k == b.size() || (i < a.size() && a[i].name < b[k].name);
    const bool only_second = i == a.size() || (k < b.size() && b[k].name < a[i].name);
    const std::string& name = only_second ? b[k].name : a[i].name;
    if (!options.wanted || options.wanted(name)) {
      if (only_first)
        results.push_back({name, TensorVerdict::missing, a[i], {}});
      else if (only_second)
        results.push_back({name, TensorVerdict::unexpected, {}, b[k]});
      else
        results.push_back(comparer.compare(i, k));
    }
    i += !only_second;
    k += !only_first;
  }
  return results;
}

}  // namespace weft
