#include "weft/train/metrics_writer.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"

namespace weft {
namespace {

class MetricsWriterTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / fmt::format("weft-metrics-{}.jsonl", ::getpid());
};

TEST_F(MetricsWriterTest, KeepsTheOrderAndEveryBit) {
  const double loss = 2.0 / 3.0, tiny = std::numeric_limits<double>::denorm_min(), large = 1e300 / 7;
  const std::string line = to_json_line(std::vector<Metric>{
      {"iteration", std::int64_t{9007199254740993}}, {"loss", loss}, {"tiny", tiny}, {"large", large}, {"one", 1.0}});
  EXPECT_EQ(line.substr(0, 52), R"({"iteration":9007199254740993,"loss":0.6666666666666)");
  const Json json = parse_json(line, "line");
  EXPECT_EQ(json["iteration"].get<std::int64_t>(), 9007199254740993);
  EXPECT_EQ(json["loss"].get<double>(), loss);
  EXPECT_EQ(json["tiny"].get<double>(), tiny);
  EXPECT_EQ(json["large"].get<double>(), large);
  EXPECT_EQ(json["one"].get<double>(), 1.0);
}

TEST_F(MetricsWriterTest, ValuesThatJsonLacksAreNullWithANote) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_json_line(std::vector<Metric>{{"iteration", std::int64_t{7}}, {"loss", nan}, {"grad_norm", 1.5}}),
            R"({"iteration":7,"loss":null,"grad_norm":1.5,"note":"loss is nan"})");
  EXPECT_EQ(to_json_line(std::vector<Metric>{{"loss", -inf}, {"grad_norm", inf}}),
            R"({"loss":null,"grad_norm":null,"note":"loss is -inf, grad_norm is inf"})");
}

TEST_F(MetricsWriterTest, TextIsEscaped) {
  const std::string line = to_json_line(std::vector<Metric>{{"te\"xt", "a\n\xff"}});
  EXPECT_EQ(parse_json(line, "line")["te\"xt"], "a\n\xef\xbf\xbd");
}

TEST_F(MetricsWriterTest, ListsAreArrays) {
  const std::vector<std::string> names = {"a", "\"b\""}, none;
  EXPECT_EQ(to_json_line(std::vector<Metric>{{"names", names}, {"none", none}}),
            R"({"names":["a","\"b\""],"none":[]})");
}

// A run that goes on from the same place loads again, and writes the line again.
TEST_F(MetricsWriterTest, TheListOfALoadIsNotThereTwice) {
  write_file_atomically(file_, "{\"iteration\":2,\"loss\":1}\n{\"iteration\":2,\"unexpected\":[]}\n");
  MetricsWriter(file_, 2).write({{"iteration", std::int64_t{3}}});
  EXPECT_EQ(read_file(file_), "{\"iteration\":2,\"loss\":1}\n{\"iteration\":3}\n");
}

TEST_F(MetricsWriterTest, EveryLineIsThereAtOnce) {
  MetricsWriter writer(file_);
  writer.write({{"iteration", std::int64_t{1}}, {"loss", 5.5}});
  EXPECT_EQ(read_file(file_), "{\"iteration\":1,\"loss\":5.5}\n");
  writer.write({{"iteration", std::int64_t{2}}});
  EXPECT_EQ(read_file(file_), "{\"iteration\":1,\"loss\":5.5}\n{\"iteration\":2}\n");
}

TEST_F(MetricsWriterTest, ANewRunBeginsANewFile) {
  write_file_atomically(file_, "{\"iteration\":1}\n{\"iterat");
  MetricsWriter(file_).write({{"iteration", std::int64_t{5}}});
  EXPECT_EQ(read_file(file_), "{\"iteration\":5}\n");
}

TEST_F(MetricsWriterTest, ExplainsWhatCannotBeWritten) {
  try {
    MetricsWriter writer(file_ / "in" / "a" / "file");
    FAIL() << "must be refused";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("(--metrics; does the folder exist?)"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
