// The checkpoint that --load means, of either form.
#include "weft/checkpoint/find_checkpoint.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/checkpoint_in_progress.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

void save_weft(const fs::path& dir, std::int64_t iteration) {
  const CheckpointInProgress checkpoint(dir, iteration);
  checkpoint.begin();
  checkpoint.commit({}, R"({"iteration": 5, "consumed_train_samples": 20, "optimizer_steps": 5, "ranks": 1,
                            "arguments": {"hidden-size": "64"}})");
}

void copy_megatron(const fs::path& to) { fs::copy(golden_folder("torch_dist") / "gpt/iter_0000007", to); }

void write_tracker(const fs::path& dir, const std::string& text) {
  std::ofstream(dir / "latest_checkpointed_iteration.txt") << text;
}

TEST(FindCheckpoint, sees_by_the_files_which_form_it_is) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  EXPECT_FALSE(find_checkpoint(run));
  save_weft(run, 5);
  EXPECT_EQ(find_checkpoint(run)->form, CheckpointForm::weft);
  EXPECT_EQ(find_checkpoint(run)->folder, run / "iter_0000005");
  EXPECT_EQ(arguments_of(*find_checkpoint(run)).at("hidden-size"), "64");
  copy_megatron(run / "iter_0000007");
  EXPECT_EQ(find_checkpoint(run)->form, CheckpointForm::weft);  // the tracker decides
  EXPECT_EQ(find_checkpoint(run, 7)->form, CheckpointForm::megatron);
  EXPECT_EQ(arguments_of(*find_checkpoint(run, 7)).at("hidden_size"), 32);
  write_tracker(run, "7");
  EXPECT_EQ(find_checkpoint(run)->form, CheckpointForm::megatron);
  EXPECT_EQ(find_checkpoint(run / "iter_0000005")->form, CheckpointForm::weft);  // a checkpoint itself
  EXPECT_EQ(find_checkpoint(run / "iter_0000007")->form, CheckpointForm::megatron);
  fs::rename(run / "iter_0000007", run / "release");
  write_tracker(run, "release");
  EXPECT_EQ(find_checkpoint(run)->folder, run / "release");
}

TEST(FindCheckpoint, says_what_is_there_instead) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  save_weft(run, 5);
  copy_megatron(run / "iter_0000007");
  const std::string at = run.string();
  EXPECT_EQ(message_of<UserError>([&] { find_checkpoint(run, 6); }),
            "--ckpt-step 6: there is no " + at + "/iter_0000006; the checkpoints in " + at + " are of iterations 5, 7");
  EXPECT_EQ(message_of<UserError>([&] { find_checkpoint(run / "iter_0000007", 6); }),
            "--ckpt-step 6: " + at + "/iter_0000007 is itself a checkpoint; drop the flag, or name the folder above");
  write_tracker(run, "8");
  EXPECT_EQ(message_of<UserError>([&] { find_checkpoint(run); }),
            at + "/latest_checkpointed_iteration.txt names iteration 8, but " + at +
                "/iter_0000008 is not a complete checkpoint; --load-last-complete takes the newest that is, "
                "--ckpt-step N another");
}

TEST(FindCheckpoint, the_last_complete_one_may_be_of_either_form) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  save_weft(run, 5);
  copy_megatron(run / "iter_0000007");
  EXPECT_EQ(find_checkpoint(run, {}, true)->folder, run / "iter_0000007");
  fs::path data = run / "iter_0000007/__0_0.distcp";
  fs::permissions(data, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(data, fs::file_size(data) / 2);
  std::vector<std::string> warnings;
  EXPECT_EQ(find_checkpoint(run, {}, true, [&](const std::string& text) { warnings.push_back(text); })->folder,
            run / "iter_0000005");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("__0_0.distcp: truncated"));
  EXPECT_THAT(warnings[0], HasSubstr("looking for an older checkpoint"));
}

TEST(FindCheckpoint, the_legacy_form_is_refused_with_what_to_do) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  fs::create_directories(run / "iter_0000003/mp_rank_00");
  write_tracker(run, "3");
  const std::optional<CheckpointPlace> place = find_checkpoint(run);
  ASSERT_TRUE(place);
  EXPECT_THAT(message_of<UserError>([&] { open_checkpoint(*place, {}); }),
              HasSubstr("convert it with Megatron's --ckpt-convert-format torch_dist"));
}

}  // namespace
}  // namespace weft
