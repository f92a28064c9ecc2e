#include "tests/checkpoint/mutations.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/checkpoint/torch_dist/counted_memory.h"
#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

std::string little(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};  // of a little-endian machine
}

}  // namespace

void mutate_once(std::string& bytes, Draws& draw, const std::vector<std::string>& tokens) {
  const std::size_t at = draw.below(bytes.size());
  const auto overwrite = [&](const std::string& with) {
    bytes.replace(at, std::min(with.size(), bytes.size() - at), with.substr(0, bytes.size() - at));
  };
  const std::uint64_t extremes[] = {
      0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~std::uint64_t{0} >> 1, ~std::uint64_t{0}};
  switch (draw.below(9)) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      overwrite(std::string(1, static_cast<char>(draw.below(256))));
      break;
    case 2:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.below(8)));
      break;
    case 3:
      overwrite(little(extremes[draw.below(9)], std::size_t{1} << draw.below(4)));
      break;
    case 4:
      bytes.erase(at, 1 + draw.below(8));
      break;
    case 5:
      bytes.insert(at, bytes.substr(draw.below(bytes.size()), 1 + draw.below(64)));
      break;
    case 6:
      overwrite(bytes.substr(draw.below(bytes.size()), 1 + draw.below(64)));
      break;
    case 7:
      bytes.insert(at, tokens[draw.below(tokens.size())]);
      break;
    default:
      overwrite(tokens[draw.below(tokens.size())]);
  }
}

void try_mutations(const std::vector<MutatedInput>& inputs, const std::vector<std::string>& tokens,
                   const MemoryBound& bound, std::int64_t usual_count) {
  std::int64_t count = usual_count;
  if (const char* asked = std::getenv("WEFT_MUTATIONS")) {
    ASSERT_TRUE(parse_int(asked, count)) << asked;
  }
  std::vector<const MutatedInput*> usual;
  for (const MutatedInput& input : inputs) {
    input.read(input.bytes);  // undamaged ones are read
    if (!input.costly) usual.push_back(&input);
  }
  std::int64_t refused = 0;
  double slowest = 0, most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Draws draw(static_cast<std::uint64_t>(i));
    const bool any = draw.below(20) == 0;
    const MutatedInput& input = any ? inputs[draw.below(inputs.size())] : *usual[draw.below(usual.size())];
    std::string bytes = input.bytes;
    if (input.mutate)
      input.mutate(bytes, draw);
    else
      for (std::size_t m = 1 + draw.below(4); m > 0; --m) mutate_once(bytes, draw, tokens);
    const std::size_t size = std::max(bytes.size(), input.bytes.size());
    bytes.shrink_to_fit();  // so that the sanitizer sees where it ends
    const auto begin = std::chrono::steady_clock::now();
    const CountedMemory memory;
    try {
      input.read(bytes);
    } catch (const UserError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find("x: "), 0u) << error.what();
    } catch (const std::exception& error) {
      FAIL() << input.name << ", mutation " << i << ": " << error.what();
    }
    ASSERT_LE(memory.peak(), bound.fixed + bound.per_byte * size) << input.name << ", mutation " << i;
    most = std::max(most, static_cast<double>(memory.peak()) / static_cast<double>(size));
    slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_LT(slowest, 10.0);
  EXPECT_GT(refused, count / 4);  // the mutations do damage something
  testing::Test::RecordProperty("refused", static_cast<int>(refused));
  std::printf("%lld mutations, %lld refused, slowest %.1f ms, at most %.1f bytes of memory per byte of input\n",
              static_cast<long long>(count), static_cast<long long>(refused), slowest * 1e3, most);
}

}  // namespace weft
