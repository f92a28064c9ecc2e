#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

TEST(SessionOptions, update_processors_of_the_environment_are_a_number) {
  for (const char* text : {"forty", "-1", "4.5", ""}) {
    setenv("WEFT_UPDATE_PROCESSORS", text, 1);
    try {
      update_processors();
      ADD_FAILURE() << text;
    } catch (const UserError& e) {
      EXPECT_EQ(
          std::string(e.what()),
          fmt::format("WEFT_UPDATE_PROCESSORS={} is not a number of processors: give 0 for no division, or unset it",
                      text));
    }
  }
  setenv("WEFT_UPDATE_PROCESSORS", "20", 1);
  EXPECT_EQ(update_processors(), 20);
  unsetenv("WEFT_UPDATE_PROCESSORS");
  EXPECT_EQ(update_processors(), std::nullopt);
}

}  // namespace
}  // namespace weft
