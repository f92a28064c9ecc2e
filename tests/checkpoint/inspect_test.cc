// What a folder holds.
#include "weft/checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/filled_box.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void save(const std::filesystem::path& dir, std::int64_t iteration) {
  const CheckpointInProgress checkpoint(dir, iteration);
  checkpoint.begin();
  const auto box = [](const char* name) {
    return filled_box(name, DType::f32, {4, 6}, Box::whole({4, 6}), std::byte{1});
  };
  const std::string run =
      R"({"iteration": 3, "consumed_train_samples": 48, "optimizer_steps": 2, "ranks": 2, "arguments": {"lr": "0.1", "expert-model-parallel-size": "2"}})";
  ModelDescription model{.compute = DType::bf16};
  model.config.pattern = "-";
  model.config.hidden = 6;
  model.config.vocabulary = 8;
  model.config.mlp.ffn = 4;
  checkpoint.commit({checkpoint.write(RankId(0), {box("weight/language.main.0.gate")}),
                     checkpoint.write(RankId(1), {box("first_moment/language.main.0.gate")})},
                    run, to_json(model).dump());
}

TEST(Inspect, ACheckpointOfWeft) {
  const ModelFolder folder;
  save(folder.path(), 3);
  for (const auto& path : {folder.path(), folder.file("iter_0000003"), folder.file("iter_0000003/")}) {
    const OpenedCheckpoint opened = open_checkpoint(path);
    EXPECT_EQ(opened.form, FolderForm::weft);
    EXPECT_EQ(opened.folder, folder.file("iter_0000003"));
    EXPECT_EQ(opened.iteration, 3);
    EXPECT_EQ(opened.consumed_samples, 48);
    EXPECT_EQ(opened.optimizer_steps, 2);
    EXPECT_EQ(opened.ranks, 2);
    EXPECT_EQ(opened.pattern, "-");
    EXPECT_EQ(opened.compute, "bf16");
    EXPECT_EQ(opened.problem, "");
    EXPECT_EQ(opened.arguments.size(), 2u);
    EXPECT_EQ(opened.files.size(), 2u);
    ASSERT_EQ(opened.tensors->tensors().size(), 2u);
    EXPECT_EQ(opened.tensors->tensors()[0].name, "first_moment/language.main.0.gate");
    EXPECT_EQ(content_of(opened.form, opened.tensors->tensors()[0].name), "first_moment");
    EXPECT_EQ(bytes_of(opened), 192);
    std::size_t verified = 0;
    EXPECT_TRUE(verify_checksums(opened, [&](std::size_t bytes) { verified = bytes; }));
    EXPECT_EQ(verified, 192u);
  }
}

TEST(Inspect, AHuggingFaceFolderEvenOneThatWeftDoesNotKnow) {
  const ModelFolder folder("mixtral");
  const OpenedCheckpoint known = open_checkpoint(folder.path());
  EXPECT_EQ(known.form, FolderForm::hugging_face);
  EXPECT_EQ(known.family, "mixtral");
  EXPECT_EQ(known.pattern, "[*E][*E]");
  EXPECT_EQ(known.problem, "");
  EXPECT_FALSE(verify_checksums(known, {}));
  folder.patch_config({{"model_type", "rwkv"}});
  const OpenedCheckpoint unknown = open_checkpoint(folder.path());
  EXPECT_EQ(unknown.family, "rwkv");
  EXPECT_THAT(unknown.problem, HasSubstr("rwkv"));
  EXPECT_EQ(unknown.tensors->tensors().size(), known.tensors->tensors().size());
  std::filesystem::remove(folder.file("config.json"));
  EXPECT_THAT(open_checkpoint(folder.path()).problem, HasSubstr("config.json: No such file"));
}

TEST(Inspect, ACheckpointOfMegatron) {
  const OpenedCheckpoint opened = open_checkpoint(golden_folder("torch_dist") / "hybrid");
  EXPECT_EQ(opened.form, FolderForm::megatron);
  EXPECT_EQ(opened.iteration, 7);
  EXPECT_EQ(opened.pattern, "[*E][*E]");
  EXPECT_EQ(opened.ranks, 2);
  EXPECT_TRUE(verify_checksums(opened, {}));
  std::set<std::string> contents;
  for (const ViewedTensor& tensor : opened.tensors->tensors()) contents.insert(content_of(opened.form, tensor.name));
  EXPECT_THAT(contents, ElementsAre("first_moment", "master_weight", "second_moment", "weight"));
}

TEST(Inspect, TheFolderOfSaveListsWhatIsThere) {
  const ModelFolder folder;
  for (std::int64_t iteration : {2, 4, 6}) save(folder.path(), iteration);
  EXPECT_TRUE(holds_iterations(folder.path()));
  EXPECT_FALSE(holds_iterations(folder.file("iter_0000002")));
  std::filesystem::resize_file(folder.file("iter_0000004/rank-00000.safetensors"), 10);
  std::filesystem::remove(folder.file("iter_0000006/manifest.json"));
  std::filesystem::create_directory(folder.file("iter_0000008.tmp"));
  std::filesystem::create_directory(folder.file("tensorboard"));
  const SavedIterations saved = list_iterations(folder.path());
  ASSERT_EQ(saved.iterations.size(), 4u);
  EXPECT_EQ(saved.named, 6);
  EXPECT_TRUE(saved.iterations[0].complete);
  EXPECT_EQ(saved.iterations[0].name, "iter_0000002");
  EXPECT_EQ(saved.iterations[0].form, "weft");
  EXPECT_GT(saved.iterations[0].bytes, 192);
  EXPECT_FALSE(saved.iterations[1].complete);
  EXPECT_THAT(saved.iterations[1].problem, HasSubstr("the checkpoint is damaged or mixed with another"));
  EXPECT_FALSE(saved.iterations[2].complete);
  EXPECT_THAT(saved.iterations[2].problem, HasSubstr("not a checkpoint"));
  EXPECT_EQ(saved.iterations[3].name, "iter_0000008.tmp");
  EXPECT_EQ(saved.iterations[3].problem, "left by a save that did not finish");
  folder.write("latest_checkpointed_iteration.txt", "soon");
  EXPECT_THAT(list_iterations(folder.path()).tracker_problem, HasSubstr("holds 'soon'"));
  std::filesystem::remove(folder.file("latest_checkpointed_iteration.txt"));
  EXPECT_THAT(message_of<UserError>([&] { open_checkpoint(folder.path()); }),
              HasSubstr("no latest_checkpointed_iteration.txt tells which of its checkpoints is meant"));
}

TEST(Inspect, WhatIsNotReadIsSaidWithTheReason) {
  const ModelFolder folder;
  const auto complaint = [](const std::filesystem::path& path) {
    return message_of<UserError>([&] { open_checkpoint(path); });
  };
  EXPECT_THAT(complaint(folder.path()), HasSubstr(": not a checkpoint: one of Weft has manifest.json, a Hugging Face "
                                                  "folder config.json and safetensors, one of Megatron .metadata"));
  EXPECT_THAT(complaint(folder.file("none")), HasSubstr("not a folder; name the folder of a checkpoint"));
  folder.write("x.pt", "");
  EXPECT_THAT(complaint(folder.file("x.pt")), HasSubstr("legacy form"));
  std::filesystem::create_directory(folder.file("mp_rank_00"));
  EXPECT_THAT(complaint(folder.path()), HasSubstr("legacy form (--ckpt-format torch"));
  folder.write("latest_checkpointed_iteration.txt", "12");
  EXPECT_THAT(complaint(folder.path()), HasSubstr("iter_0000012"));
}

}  // namespace
}  // namespace weft
