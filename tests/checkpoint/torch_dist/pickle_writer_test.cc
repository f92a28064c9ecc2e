#include <array>
#include <bit>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/python_value.h"

namespace weft {
namespace {

using namespace std::string_literals;

std::string read_back(const PythonValue& value, int protocol) {
  const std::string bytes = pickle_of(value, protocol);
  const Pickle pickle(written::bytes_of(bytes), "x");
  return to_json(pickle.root(), pickle, "x").dump();
}

TEST(PickleWriter, opcodes_are_those_of_pythons_pickler) {
  EXPECT_EQ(pickle_of({}, 2), "\x80\x02N.");
  EXPECT_EQ(pickle_of(true, 2), "\x80\x02\x88.");
  EXPECT_EQ(pickle_of("ab", 2), "\x80\x02X\x02\0\0\0abq\0."s);
  EXPECT_EQ(pickle_of("ab", 4),
            "\x80\x04\x8c\x02"
            "ab\x94.");
  EXPECT_EQ(pickle_of(std::string(256, 'x'), 4), "\x80\x04X\0\1\0\0"s + std::string(256, 'x') + "\x94.");
  EXPECT_EQ(pickle_of(0.5, 2), "\x80\x02G\x3f\xe0\0\0\0\0\0\0."s);
  EXPECT_EQ(pickle_of(PythonValue::global("torch", "float32"), 2), "\x80\x02"s + "ctorch\nfloat32\nq\0."s);
  EXPECT_EQ(pickle_of(PythonValue::global("torch", "float32"), 4),
            "\x80\x04\x8c\x05torch\x94\x8c\x07"s + "float32\x94\x93\x94.");
  EXPECT_EQ(pickle_of(PythonValue::tuple({1, 2, 3}), 2), "\x80\x02K\1K\2K\3\x87.");
  EXPECT_EQ(pickle_of(PythonValue::tuple({1, 2, 3, 4}), 2), "\x80\x02(K\1K\2K\3K\4t.");
  EXPECT_EQ(pickle_of(PythonValue::name_space({{"a", 1}}), 2),
            "\x80\x02"s + "cargparse\nNamespace\nq\0)\x81}(X\1\0\0\0aq\1K\1ub."s);
}

TEST(PickleWriter, integers_take_the_fewest_bytes_that_hold_them) {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {
      {0, "K\0"s},
      {255, "K\xff"},
      {256, "M\0\1"s},
      {65535, "M\xff\xff"},
      {65536, "J\0\0\1\0"s},
      {-1, "J\xff\xff\xff\xff"},
      {2147483647, "J\xff\xff\xff\x7f"},
      {2147483648, "\x8a\5\0\0\0\x80\0"s},
      {-2147483649, "\x8a\5\xff\xff\xff\x7f\xff"},
      {(std::int64_t{1} << 39) - 1, "\x8a\5\xff\xff\xff\xff\x7f"},
      {std::int64_t{1} << 39, "\x8a\6\0\0\0\0\x80\0"s},
      {std::numeric_limits<std::int64_t>::max(), "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"},
      {std::numeric_limits<std::int64_t>::min(), "\x8a\x08\0\0\0\0\0\0\0\x80"s}};
  for (const auto& [number, bytes] : cases) {
    EXPECT_EQ(pickle_of(number, 2), "\x80\x02" + bytes + ".") << number;
    EXPECT_EQ(read_back(number, 4), fmt::format("{}", number));
  }
  // 2^64 and -2^64
  EXPECT_EQ(read_back(PythonValue::long_integer(std::string(8, '\0') + '\1'), 2), "\"18446744073709551616\"");
  EXPECT_EQ(read_back(PythonValue::long_integer(std::string(8, '\0') + '\xff'), 2), "\"-18446744073709551616\"");
  EXPECT_EQ(read_back(PythonValue::from(std::numeric_limits<std::uint64_t>::max()), 2), "\"18446744073709551615\"");
  EXPECT_EQ(pickle_of(PythonValue::long_integer(std::string(300, '\1')), 2).substr(2, 5), "\x8b\x2c\1\0\0"s);
}

TEST(PickleWriter, a_name_is_written_once_and_referred_to) {
  PythonValue::Values many;
  for (int i = 0; i < 300; ++i) many.push_back(fmt::format("name {}", i));
  for (int i = 0; i < 300; ++i) many.push_back(fmt::format("name {}", i));
  for (const int protocol : {2, 4}) {
    const std::string bytes = pickle_of(PythonValue::list(many), protocol);
    EXPECT_EQ(bytes.find("name 299"), bytes.rfind("name 299"));
    const Pickle pickle(written::bytes_of(bytes), "x");
    const auto& items = pickle.root().items();
    ASSERT_EQ(items.size(), 600u);
    for (std::size_t i = 0; i < 600; ++i) EXPECT_EQ(items[i].text(), fmt::format("name {}", i % 300));
  }
}

TEST(PickleWriter, text_that_python_could_not_read_is_refused) {
  EXPECT_EQ(message_of<UserError>([] { pickle_of("a\xff", 2); }),
            "'a\\xff' is not UTF-8, and cannot be written as Python's text");
  EXPECT_EQ(read_back("\xc3\xa4\xf0\x9f\x98\x80", 2), "\"\xc3\xa4\xf0\x9f\x98\x80\"");
}

TEST(PickleWriter, json_becomes_the_same_plain_data) {
  const Json json = Json::parse(R"({"a": [1, 2.5, "x", null, true, -7], "b": {"c": {}, "d": []}, "e": ""})");
  for (const int protocol : {2, 3, 4}) EXPECT_EQ(read_back(PythonValue::from(json), protocol), json.dump());
}

// A random value, and how `shown_value` must show what was read.
struct Made {
  PythonValue value;
  std::string text;
};

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

std::string bytes_of_latin1(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    bytes += first < 0x80 ? text[i] : static_cast<char>((first & 3) << 6 | (text[++i] & 0x3f));
  }
  return bytes;
}

std::string shown_value(const PickleValue& value) {
  const auto all = [](const std::vector<PickleValue>& items) {
    std::string text;
    for (const PickleValue& item : items) text += shown_value(item) + ",";
    return text;
  };
  switch (value.kind()) {
    case PickleKind::boolean:
      return value.boolean() ? "true" : "false";
    case PickleKind::integer:
      return fmt::format("i{}", value.integer());
    case PickleKind::long_integer:
      return "l" + hex(value.bytes());
    case PickleKind::real:
      return fmt::format("r{:x}", std::bit_cast<std::uint64_t>(value.real()));
    case PickleKind::text:
      return fmt::format("t'{}'", value.text());
    case PickleKind::bytes:
      return "b" + hex(value.bytes());
    case PickleKind::tuple:
      return "(" + all(value.items()) + ")";
    case PickleKind::list:
      return "[" + all(value.items()) + "]";
    case PickleKind::dict:
      return "{" + all(value.items()) + "}";
    case PickleKind::global:
      return fmt::format("{}.{}", value.global().module, value.global().name);
    case PickleKind::object: {
      const PickledObject& object = value.object();
      // How protocol 2 has bytes.
      if (is_object_of(value, "_codecs", "encode"))
        return "b" + hex(written::bytes_of(bytes_of_latin1(object.arguments.items().at(0).text())));
      return shown_value(object.callee) + shown_value(object.arguments) +
             (object.state.is(PickleKind::none) ? "" : shown_value(object.state));
    }
    default:
      return "none";
  }
}

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : key_(random_key(seed, "values")) {}

  Made make(int depth) {
    switch (below(depth > 0 ? 13 : 8)) {
      case 0:
        return {{}, "none"};
      case 1: {
        const bool truth = below(2) == 0;
        return {truth, truth ? "true" : "false"};
      }
      case 2: {
        const std::int64_t number = bits() >> below(64);
        return {number, fmt::format("i{}", number)};
      }
      case 3: {
        const std::string bytes = random_bytes(9 + below(300));
        return {PythonValue::long_integer(bytes), "l" + hex(written::bytes_of(bytes))};
      }
      case 4: {
        const std::int64_t number = bits();
        return {std::bit_cast<double>(number), fmt::format("r{:x}", static_cast<std::uint64_t>(number))};
      }
      case 5: {
        const std::string text = random_text();
        return {text, fmt::format("t'{}'", text)};
      }
      case 6: {
        const std::string bytes = random_bytes(below(300));
        return {PythonValue::bytes(bytes), "b" + hex(written::bytes_of(bytes))};
      }
      case 7:
        return random_class();
      case 8: {
        auto [items, text] = values(depth);
        return {PythonValue::tuple(std::move(items)), "(" + text + ")"};
      }
      case 9: {
        auto [items, text] = values(depth);
        return {PythonValue::list(std::move(items)), "[" + text + "]"};
      }
      case 10:
        return random_dict(depth);
      case 11: {
        const Made callee = random_class();
        auto [items, text] = values(depth);
        return {PythonValue::call(callee.value, std::move(items)), fmt::format("{}({})", callee.text, text)};
      }
      default: {
        const Made of_class = random_class(), state = random_dict(depth);
        return {PythonValue::object(of_class.value, state.value), fmt::format("{}(){}", of_class.text, state.text)};
      }
    }
  }

 private:
  std::size_t below(std::size_t bound) { return random_below(key_, next_++, bound); }
  std::int64_t bits() { return static_cast<std::int64_t>(random_below(key_, next_++, ~std::uint64_t{0})); }
  std::string random_bytes(std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(below(256));
    return bytes;
  }
  std::string random_text() {
    std::string text;
    for (std::size_t i = below(3) == 0 ? below(400) : below(4); i > 0; --i)
      text += std::array{"a", "B", "\n", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}[below(6)];
    return text;
  }
  Made random_class() {
    const std::string module = "megatron." + std::string(1 + below(3), 'm'), name(1 + below(3), 'n');
    return {PythonValue::global(module, name), fmt::format("{}.{}", module, name)};
  }
  std::pair<PythonValue::Values, std::string> values(int depth) {
    std::pair<PythonValue::Values, std::string> result;
    for (std::size_t i = below(6); i > 0; --i) {
      Made made = make(depth - 1);
      result.first.push_back(std::move(made.value));
      result.second += made.text + ",";
    }
    return result;
  }
  Made random_dict(int depth) {
    PythonValue::Values entries;
    std::string text;
    for (std::size_t i = below(5); i > 0; --i) {
      const std::string key = random_text();
      Made made = make(depth - 1);
      entries.push_back(key);
      entries.push_back(std::move(made.value));
      text += fmt::format("t'{}',{},", key, made.text);
    }
    return {PythonValue::dict(std::move(entries)), "{" + text + "}"};
  }

  std::uint64_t key_, next_ = 0;
};

TEST(PickleWriter, random_values_are_read_back_as_they_were) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const Made made = RandomValues(seed).make(5);
    for (const int protocol : {2, 3, 4}) {
      const std::string bytes = pickle_of(made.value, protocol);
      const Pickle pickle(written::bytes_of(bytes), "x");
      ASSERT_EQ(shown_value(pickle.root()), made.text) << "seed " << seed << ", protocol " << protocol;
    }
  }
}

}  // namespace
}  // namespace weft
