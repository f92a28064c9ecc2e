#include "weft/checkpoint/new_folder.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(NewFolder, HasItsNameOnceItIsWhole) {
  const ModelFolder work;
  { const NewFolder given_up(work.file("out")); }
  EXPECT_TRUE(listing(work.path()).empty());
  NewFolder folder(work.file("out"));
  write_side_files(folder.path(), {{"config.json", "{}"}});
  EXPECT_FALSE(std::filesystem::exists(work.file("out")));
  folder.commit();
  EXPECT_THAT(listing(work.path()), UnorderedElementsAre("out"));
  EXPECT_THAT(listing(work.file("out")), UnorderedElementsAre("config.json"));
}

TEST(NewFolder, AWholeOneStaysWhenItsNameIsTaken) {
  const ModelFolder work;
  std::string beside;
  {
    NewFolder folder(work.file("out"));
    beside = folder.path();
    write_side_files(folder.path(), {{"config.json", "{}"}});
    std::filesystem::create_directory(work.file("out"));
    work.write("out/of_another_run", "");
    const std::string message = message_of<RunError>([&] { folder.commit(); });
    EXPECT_THAT(message, HasSubstr("cannot rename " + beside + " to " + work.file("out").string()));
    EXPECT_THAT(message, HasSubstr(beside + " is whole and stays"));
  }
  EXPECT_THAT(listing(work.file("out")), UnorderedElementsAre("of_another_run"));
  EXPECT_THAT(listing(beside), UnorderedElementsAre("config.json"));
}

TEST(NewFolder, LeavesAnOlderRunsFolderAlone) {
  const ModelFolder work;
  // A run that was killed, or could not rename, may have had the number of this process.
  const std::string old = fmt::format("out.tmp-{}", ::getpid());
  std::filesystem::create_directory(work.file(old));
  work.write(old + "/model-00001-of-00003.safetensors", "old");
  NewFolder folder(work.file("out"));
  write_side_files(folder.path(), {{"config.json", "{}"}});
  folder.commit();
  EXPECT_THAT(listing(work.file("out")), UnorderedElementsAre("config.json"));
  EXPECT_THAT(listing(work.file(old)), UnorderedElementsAre("model-00001-of-00003.safetensors"));
}

TEST(NewFolder, CannotBeMadeInAFile) {
  const ModelFolder work;
  work.write("file", "");
  EXPECT_THAT(message_of<RunError>([&] { NewFolder folder(work.file("file/out")); }),
              HasSubstr("cannot make the folder " + work.file("file/out").string()));
}

}  // namespace
}  // namespace weft
