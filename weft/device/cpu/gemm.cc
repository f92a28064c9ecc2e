#include "weft/device/cpu/gemm.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>

#include <dnnl.hpp>
#include <omp.h>

#include "weft/base/error.h"
#include "weft/device/cpu/scratch.h"

namespace weft {

namespace {

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

const void* advance(const void* data, std::int64_t elements, DType dtype) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + elements * size(dtype);
}
void* advance(void* data, std::int64_t elements, DType dtype) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + elements * size(dtype);
}

// Terms [p0, p1) of the sum.
Product terms_of(const Product& x, std::int64_t p0, std::int64_t p1) {
  Product part = x;
  part.k = p1 - p0;
  part.a.data = advance(x.a.data, x.a.offset(p0, 0), x.a.dtype);
  part.b.data = advance(x.b.data, x.b.offset(p0, 0), x.b.dtype);
  return part;
}

// Everything that a compiled primitive depends on.
struct Key {
  std::int64_t m, n, k, a_stride, b_stride, c_stride;
  bool a_contiguous, b_contiguous, add, has_bias;
  DType c_dtype, bias_dtype;
  bool operator==(const Key&) const = default;
};

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Compiled {
  Key key;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias;
};

class Library {
 public:
  void multiply(const Product& x) {
    Compiled& entry = find(x);
    entry.a.set_data_handle(const_cast<void*>(x.a.data));
    entry.b.set_data_handle(const_cast<void*>(x.b.data));
    entry.c.set_data_handle(x.c);
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, entry.a}, {DNNL_ARG_WEIGHTS, entry.b}, {DNNL_ARG_DST, entry.c}};
    if (x.bias != nullptr) {
      entry.bias.set_data_handle(const_cast<void*>(x.bias));
      arguments.emplace(DNNL_ARG_BIAS, entry.bias);
    }
    entry.primitive.execute(stream_, arguments);
    stream_.wait();
  }

 private:
  static constexpr std::size_t capacity = 128;

  Compiled& find(const Product& x) {
    const Key key{x.m,
                  x.n,
                  x.k,
                  x.a.stride,
                  x.b.stride,
                  x.c_stride,
                  x.a.sum_contiguous,
                  x.b.sum_contiguous,
                  x.add,
                  x.bias != nullptr,
                  x.c_dtype,
                  x.bias_dtype};
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Compiled& e) { return e.key == key; });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);  // most recently used first
      return entries_.front();
    }
    if (entries_.size() == capacity) entries_.pop_back();
    entries_.push_front(compile(key));
    return entries_.front();
  }

  Compiled compile(const Key& key) {
    using dnnl::memory;
    const auto bf16 = memory::data_type::bf16;
    const memory::desc a({key.m, key.k}, bf16,
                         key.a_contiguous ? memory::dims{key.a_stride, 1} : memory::dims{1, key.a_stride});
    const memory::desc b({key.k, key.n}, bf16,
                         key.b_contiguous ? memory::dims{1, key.b_stride} : memory::dims{key.b_stride, 1});
    const memory::desc c({key.m, key.n}, type_of(key.c_dtype), memory::dims{key.c_stride, 1});
    const memory::desc bias =
        key.has_bias ? memory::desc({1, key.n}, type_of(key.bias_dtype), memory::dims{key.n, 1}) : memory::desc();
    dnnl::primitive_attr attributes;
    if (key.add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc description =
        key.has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc primitive(description, attributes, engine_);
    Compiled entry{key,
                   dnnl::matmul(primitive),
                   memory(a, engine_, nullptr),
                   memory(b, engine_, nullptr),
                   memory(c, engine_, nullptr),
                   {}};
    if (key.has_bias) entry.bias = memory(bias, engine_, nullptr);
    return entry;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::list<Compiled> entries_;
};

void multiply_by_library(const Product& x) {
  if (x.m == 0 || x.n == 0) return;
  // Not shared state: compiled code of this thread. oneDNN must not start threads of its own.
  thread_local Library library;
  thread_local const bool alone = (omp_set_num_threads(1), true);
  (void)alone;
  try {
    library.multiply(x);
  } catch (const dnnl::error& error) {
    throw RunError("oneDNN failed on a bfloat16 product [{}, {}] x [{}, {}]: {}", x.m, x.k, x.k, x.n, error.message);
  }
}

// Cuts [0, count) into pieces of 512 and then powers of two: few shapes, whatever the count. piece(begin, end).
template <class Piece>
void few_sizes(std::int64_t count, const Piece& piece) {
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t left = count - begin;
    const std::int64_t take =
        std::min<std::int64_t>(512, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(left))));
    piece(begin, begin + take);
    begin += take;
  }
}

void multiply_varying(const Product& x) {
  few_sizes(x.m, [&](std::int64_t m0, std::int64_t m1) {
    const Product rows = part_of(x, m0, m1, 0, x.n);
    few_sizes(x.k, [&](std::int64_t p0, std::int64_t p1) {
      Product terms = terms_of(rows, p0, p1);
      terms.add = rows.add || p0 > 0;
      if (p1 < x.k) terms.bias = nullptr;
      multiply_by_library(terms);
    });
  });
}

// c = (c, if add) + sums, rounded once.
void round_into(const Product& x, const float* sums) {
  auto* c = static_cast<bfloat16*>(x.c);
  for (std::int64_t i = 0; i < x.m; ++i)
    for (std::int64_t j = 0; j < x.n; ++j) {
      bfloat16& to = c[i * x.c_stride + j];
      to = bfloat16(x.add ? static_cast<float>(to) + sums[i * x.n + j] : sums[i * x.n + j]);
    }
}

}  // namespace

Product part_of(const Product& x, std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1) {
  Product part = x;
  part.m = m1 - m0;
  part.n = n1 - n0;
  part.a.data = advance(x.a.data, x.a.offset(0, m0), x.a.dtype);
  part.b.data = advance(x.b.data, x.b.offset(0, n0), x.b.dtype);
  part.c = advance(x.c, m0 * x.c_stride + n0, x.c_dtype);
  part.bias = advance(x.bias, n0, x.bias_dtype);
  part.residual = advance(x.residual, m0 * x.residual_stride + n0, x.c_dtype);
  return part;
}

bool has_bfloat16_instructions() {
  constexpr int bf16 = dnnl_cpu_isa_avx512_core_bf16;
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & bf16) == bf16;
}

bool suits_bfloat16_product(const Product& x) {
  return x.a.dtype == DType::bf16 && x.b.dtype == DType::bf16 && x.k > 0 &&
         (x.c_dtype == DType::f32 || x.c_dtype == DType::bf16) && (x.bias == nullptr || x.bias_dtype != DType::f64);
}

void bfloat16_product(const Product& product) {
  WEFT_CHECK(suits_bfloat16_product(product), "a product of {} and {} to {}", name_of(product.a.dtype),
             name_of(product.b.dtype), name_of(product.c_dtype));
  Product x = product;
  if (x.residual != nullptr) {
    const std::int64_t step = size(x.c_dtype);
    for (std::int64_t i = 0; i < x.m; ++i)
      std::memmove(advance(x.c, i * x.c_stride, x.c_dtype), advance(x.residual, i * x.residual_stride, x.c_dtype),
                   static_cast<std::size_t>(x.n * step));
    x.residual = nullptr;
    x.add = true;
  }
  if (!x.varying) return multiply_by_library(x);
  if (x.c_dtype == DType::f32 || std::has_single_bit(static_cast<std::uint64_t>(x.k))) return multiply_varying(x);
  // A sum in pieces must not be rounded in between.
  const std::int64_t rows = std::max<std::int64_t>((std::int64_t{1} << 20) / std::max<std::int64_t>(x.n, 1), 1);
  auto* sums = reinterpret_cast<float*>(
      thread_scratch(ScratchUse::result, static_cast<std::size_t>(std::min(rows, x.m) * x.n) * sizeof(float)));
  for (std::int64_t m0 = 0; m0 < x.m; m0 += rows) {
    const Product part = part_of(x, m0, std::min(m0 + rows, x.m), 0, x.n);
    Product wide = part;
    wide.c = sums;
    wide.c_dtype = DType::f32;
    wide.c_stride = x.n;
    wide.add = false;
    multiply_varying(wide);
    round_into(part, sums);
  }
}

}  // namespace weft
