// Runs the executable as a user does, and returns what came of it.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"

namespace weft {

using Words = std::vector<std::string>;
Words operator+(Words first, const Words& second);

struct Outcome {
  int code = -1;  // 128 + N where a signal N ended it
  std::string out, err;
};

// `weft WORDS...`, in this process's folder; ended after a minute.
Outcome run_weft(const Words& words);

// The same, and `signal` is sent to it once `ready` returns true.
Outcome run_weft_until(const Words& words, const std::function<bool()>& ready, int signal);

// The request was wrong: exit code 2, one message on stderr that holds every part, and nothing on stdout.
void expect_refused(const Words& words, std::initializer_list<std::string> parts);

// The request was good: exit code 0 and nothing on stderr. Returns stdout.
std::string expect_done(const Words& words);

// A model that trains in milliseconds, and the fewest flags for a run.
inline const Words tiny_model = {"--pattern",     "[*E]", "--hidden-size", "32", "--ffn-hidden-size",  "32",
                                 "--num-experts", "4",    "--seq-length",  "16", "--micro-batch-size", "2"};
inline const Words tiny_run = tiny_model + Words{"--train-iters", "3", "--eval-iters", "1", "--threads", "1"};

std::string golden(const std::string& path);  // in tests/golden

}  // namespace weft
