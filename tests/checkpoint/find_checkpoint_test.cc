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

void damage(const fs::path& data) {
  fs::permissions(data, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(data, fs::file_size(data) / 2);
}

TEST(FindCheckpoint, the_last_complete_one_may_be_of_either_form) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  save_weft(run, 5);
  copy_megatron(run / "iter_0000007");
  write_tracker(run, "7");
  EXPECT_EQ(find_checkpoint(run, {}, WhichCheckpoint::newest_verified)->folder, run / "iter_0000007");
  damage(run / "iter_0000007/__0_0.distcp");
  std::vector<std::string> warnings;
  EXPECT_EQ(find_checkpoint(run, {}, WhichCheckpoint::newest_verified,
                            [&](const std::string& text) { warnings.push_back(text); })
                ->folder,
            run / "iter_0000005");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("__0_0.distcp: truncated"));
  EXPECT_THAT(warnings[0], HasSubstr("looking for another checkpoint"));
}

// Changed bytes are seen by their checksum alone, which opening does not look at.
TEST(FindCheckpoint, what_can_be_opened_need_not_be_undamaged) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  save_weft(run, 5);
  copy_megatron(run / "iter_0000007");
  write_tracker(run, "7");
  const fs::path data = run / "iter_0000007/__0_0.distcp";
  fs::permissions(data, fs::perms::owner_write, fs::perm_options::add);
  std::string bytes = read_file(data);
  for (std::size_t at = bytes.size() / 3; at < bytes.size() / 2; ++at) bytes[at] ^= 1;
  std::ofstream(data, std::ios::binary) << bytes;
  int verified = 0;
  EXPECT_EQ(find_checkpoint(run, {}, WhichCheckpoint::newest_open, {}, [&] { ++verified; })->folder,
            run / "iter_0000007");
  EXPECT_EQ(verified, 0);
  EXPECT_EQ(find_checkpoint(run, {}, WhichCheckpoint::newest_verified, {}, [&] { ++verified; })->folder,
            run / "iter_0000005");
  EXPECT_GT(verified, 0);
}

// A run that goes on from an earlier checkpoint leaves those after it.
TEST(FindCheckpoint, the_newest_is_what_the_tracker_names_and_not_what_is_later) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  for (const int iteration : {2, 4, 6, 8}) save_weft(run, iteration);
  const auto newest = [&] { return find_checkpoint(run, {}, WhichCheckpoint::newest_verified)->folder.filename(); };
  write_tracker(run, "4");
  EXPECT_EQ(newest(), "iter_0000004");
  fs::remove(run / "iter_0000004/manifest.json");
  EXPECT_EQ(newest(), "iter_0000002");
  fs::remove(run / "iter_0000002/manifest.json");
  EXPECT_EQ(newest(), "iter_0000008");
  write_tracker(run, "");  // as a killed writer may leave it
  EXPECT_EQ(newest(), "iter_0000008");
  fs::remove(run / "latest_checkpointed_iteration.txt");
  EXPECT_EQ(newest(), "iter_0000008");
  copy_megatron(run / "release");
  write_tracker(run, "release");
  EXPECT_EQ(newest(), "release");
}

TEST(FindCheckpoint, says_what_is_there_where_no_tracker_names_it) {
  const ModelFolder folder;
  const fs::path run = folder.file("run");
  std::vector<std::string> warnings;
  const Warn warn = [&](const std::string& text) { warnings.push_back(text); };
  EXPECT_FALSE(find_checkpoint(run, {}, WhichCheckpoint::tracked, warn));
  EXPECT_THAT(warnings, ElementsAre());
  save_weft(run, 5);
  copy_megatron(run / "iter_0000007");
  fs::remove(run / "latest_checkpointed_iteration.txt");
  EXPECT_FALSE(find_checkpoint(run, {}, WhichCheckpoint::tracked, warn));
  EXPECT_THAT(warnings,
              ElementsAre(run.string() +
                          " has no latest_checkpointed_iteration.txt, which names the checkpoint to go on from; "
                          "the newest there is " +
                          (run / "iter_0000007").string() + ": --ckpt-step 7 loads it"));
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
