// JSON that people and attackers write: read or refused, in a time and depth that the length bounds.
#include "weft/base/json.h"

#include <chrono>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

std::string error_of(const std::string& text) {
  return message_of<UserError>([&] { parse_json(text, "j"); });
}

TEST(Json, IsReadAsTheLibraryReadsIt) {
  for (const std::string text :
       {"{}", "[]", "null", "3", "-7", "18446744073709551615", "1.5e3", "\"a\\u00e4\\n\"", "[1, [2, {\"b\": [3]}], {}]",
        "{\"z\": 1, \"a\": {\"y\": [], \"x\": null}, \"m\": [true, false]}", "{\"a\": 1, \"b\": 2, \"a\": 3}"})
    EXPECT_EQ(parse_json(text, "j").dump(), Json::parse(text).dump()) << text;
}

TEST(Json, ManyKeysKeepTheirOrderAndTheLastOfEqualOnesCounts) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("\"k{}\": {}, ", i * 37 % 100, i);
  text = "{" + text + "\"k0\": -1, \"k99\": -2}";
  const Json json = parse_json(text, "j");
  EXPECT_EQ(json.size(), 100u);
  EXPECT_EQ(json.begin().key(), "k0");
  EXPECT_EQ(json["k0"], -1);
  EXPECT_EQ(json["k99"], -2);
  EXPECT_EQ(json["k37"], 1);
}

TEST(Json, WhatNestsTooDeepOrHoldsAZeroByteIsRefused) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(error_of(nested(100)), "");
  EXPECT_EQ(error_of(nested(101)), "j: not read as JSON: values nest more than 100 deep");
  EXPECT_EQ(error_of(std::string(1'000'000, '[')), "j: not read as JSON: values nest more than 100 deep");
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(error_of(objects), "j: not read as JSON: values nest more than 100 deep");
  EXPECT_EQ(error_of(std::string("{}\0{}", 5)), "j: not valid JSON: holds a zero byte");
  EXPECT_EQ(error_of("{} {}").rfind("j: not valid JSON: ", 0), 0u);
  EXPECT_EQ(error_of("").rfind("j: not valid JSON: ", 0), 0u);
}

TEST(Json, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += fmt::format("\"{}\": {{}}, ", i);
  text += "\"end\": 0}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text, "j").size(), 100'001u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));  // quadratic: minutes
}

}  // namespace
}  // namespace weft
