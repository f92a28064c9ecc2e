// Commands that are called without a process: what they print, and how they refuse.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {

using CommandFunction = int (*)(std::span<const std::string> args, std::FILE* out);

inline std::string output_of(CommandFunction command, const std::vector<std::string>& args) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  const int code = command(args, out);
  std::fclose(out);
  const std::string result(text, size);
  std::free(text);
  EXPECT_EQ(code, 0);
  return result;
}

inline std::string refusal_of(CommandFunction command, const std::vector<std::string>& args) {
  try {
    command(args, stdout);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace weft
