#include "apps/weft/tokenize_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/indexed_dataset.h"
#include "weft/data/stories.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenizeCommand : public ::testing::Test {
 protected:
  // What the command prints.
  std::string run(const std::vector<std::string>& args) {
    std::FILE* out = std::tmpfile();
    try {
      EXPECT_EQ(run_tokenize_command(args, out), 0);
    } catch (...) {
      std::fclose(out);
      throw;
    }
    std::string text(static_cast<std::size_t>(std::ftell(out)), '\0');
    std::rewind(out);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
    std::fclose(out);
    return text;
  }
  std::string error(const std::vector<std::string>& args) {
    return message_of<UserError>([&] { run(args); });
  }
  std::string input(const std::string& name, std::string_view text) {
    write_file_atomically(folder_.file(name), text);
    return folder_.file(name);
  }
  // The documents as text, the end of document as "#".
  std::vector<std::string> documents(const std::string& prefix) {
    const IndexedDataset dataset(folder_.file(prefix), 257);
    std::vector<std::string> result;
    for (std::int64_t i = 0; i < dataset.count(); ++i) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, ids);
      result.emplace_back();
      for (std::int32_t id : ids) result.back() += id == 256 ? '#' : static_cast<char>(id);
    }
    return result;
  }

  TemporaryFolder folder_;
};

constexpr const char* three_documents = "first\nline two\n\nsecond\n\n\n\nthird";

TEST_F(TokenizeCommand, BlankLinesSeparateDocuments) {
  const std::string text = input("in.txt", three_documents), prefix = folder_.file("p");
  EXPECT_THAT(run({"--input", text, "--output-prefix", prefix}),
              HasSubstr("p.bin: 3 documents, 31 tokens of 257 ids as uint16"));
  EXPECT_THAT(documents("p"), ElementsAre("first\nline two\n\n", "second\n\n\n\n", "third"));
  run({"--input=" + text, "--output-prefix", prefix, "--append-eod"});
  EXPECT_THAT(documents("p"), ElementsAre("first\nline two#", "second#", "third#"));
}

TEST_F(TokenizeCommand, OrLinesOrNothingDoes) {
  const std::string text = input("in.txt", three_documents), prefix = folder_.file("p");
  run({"--input", text, "--output-prefix", prefix, "--documents", "lines", "--append-eod"});
  EXPECT_THAT(documents("p"), ElementsAre("first#", "line two#", "second#", "third#"));
  run({"--input", text, "--output-prefix", prefix, "--documents", "whole", "--append-eod"});
  EXPECT_THAT(documents("p"), ElementsAre(std::string(three_documents) + "#"));
}

TEST_F(TokenizeCommand, ReadsJsonLines) {
  const std::string lines =
      input("in.jsonl", "{\"text\":\"one\\ntwo\",\"title\":\"T\"}\n\n{\"title\":\"U\",\"text\":\"\\u00e4\"}\n");
  run({"--input", lines, "--output-prefix", folder_.file("p"), "--append-eod"});
  EXPECT_THAT(documents("p"), ElementsAre("one\ntwo#", "\xc3\xa4#"));
  const Json summary = parse_json(
      run({"--input", lines, "--output-prefix", folder_.file("p"), "--json-keys", "text,title", "--json"}), "summary");
  EXPECT_THAT(documents("p_text_document"), ElementsAre("one\ntwo", "\xc3\xa4"));
  EXPECT_THAT(documents("p_title_document"), ElementsAre("T", "U"));
  EXPECT_EQ(summary["vocabulary_size"], 257);
  EXPECT_EQ(summary["eod"], 256);
  EXPECT_EQ(summary["files"].size(), 2u);
  EXPECT_EQ(summary["files"][1]["documents"], 2);
  EXPECT_EQ(summary["files"][1]["tokens"], 2);
  EXPECT_EQ(summary["files"][1]["dtype"], "uint16");
  EXPECT_EQ(summary["files"][1]["idx"], folder_.file("p_title_document.idx"));
}

TEST_F(TokenizeCommand, ReadsNumbers) {
  const std::string text = input("in.txt", "1 2 70000\n3\n");
  run({"--input", text, "--output-prefix", folder_.file("p"), "--tokenizer-type", "NullTokenizer", "--vocab-size",
       "80000", "--documents", "lines", "--append-eod"});
  const IndexedDataset dataset(folder_.file("p"), 80001);
  EXPECT_EQ(dataset.token_type(), TokenType::i32);
  std::vector<std::int32_t> ids(4);
  dataset.read(0, 0, ids);
  EXPECT_THAT(ids, ElementsAre(1, 2, 70000, 80000));
  EXPECT_EQ(dataset.length(1), 2);
}

TEST_F(TokenizeCommand, WritesStories) {
  run({"--stories", "8K", "--seed", "7", "--output-prefix", folder_.file("p")});
  const std::string text = read_file(folder_.file("p.txt"));
  EXPECT_EQ(text, write_stories(7, 8192));
  std::string again;
  for (const std::string& document : documents("p")) again += document;
  EXPECT_EQ(again, text);
}

TEST_F(TokenizeCommand, ExplainsWrongRequests) {
  const std::string text = input("in.txt", "1 x"), lines = input("in.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n");
  const std::string prefix = folder_.file("p"), none = folder_.file("none");
  EXPECT_THAT(error({"--inptu", text}), HasSubstr("unknown flag --inptu; did you mean --input?"));
  EXPECT_THAT(error({"--output-prefix", prefix}), HasSubstr("give either --input FILE or --stories SIZE"));
  EXPECT_THAT(error({"--input", text}), HasSubstr("give --output-prefix PREFIX"));
  EXPECT_THAT(error({text, "--output-prefix", prefix}),
              HasSubstr("unexpected argument '" + text + "': the text to read is --input FILE"));
  EXPECT_THAT(error({"--stories", "3Q", "--output-prefix", prefix}), HasSubstr("--stories 3Q is not a size"));
  EXPECT_THAT(error({"--stories", "", "--output-prefix", prefix}),
              HasSubstr("--stories: the value is empty; drop the flag instead"));
  EXPECT_THAT(error({"--stories", "99999999G", "--output-prefix", prefix}), HasSubstr("is not a size"));
  EXPECT_THAT(error({"--stories", "3K", "--seed", "-1", "--output-prefix", prefix}),
              HasSubstr("--seed: -1 is out of range; it must be at least 0"));
  EXPECT_THAT(error({"--input", none, "--output-prefix", prefix}), HasSubstr("none: No such file or directory"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--documents", "pages"}),
              HasSubstr("--documents: 'pages' is not one of blank-lines, lines, whole"));
  EXPECT_THAT(error({"--input", "x.jsonl", "--output-prefix", prefix, "--json-keys", "a,b,a"}),
              HasSubstr("--json-keys: 'a' is named twice; each key has files of its own"));
  EXPECT_THAT(error({"--input", "x.jsonl", "--output-prefix", prefix, "--json-keys", "a,"}),
              HasSubstr("--json-keys a,: a key is empty"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--json-keys", "a"}),
              HasSubstr("--json-keys: only JSON lines (FILE.jsonl) have keys; drop the flag"));
  EXPECT_THAT(
      error({"--input", text, "--output-prefix", prefix, "--tokenizer-type", "NullTokenizer", "--vocab-size=9"}),
      HasSubstr("in.txt, document at line 1: NullTokenizer reads whole numbers separated by blanks; \"x\" at byte 2 is "
                "not one"));
  for (const char* how : {"blank-lines", "lines"})
    EXPECT_THAT(error({"--input", input("bad.txt", "1\n\n2 y\n\n3\n"), "--output-prefix", prefix, "--documents", how,
                       "--tokenizer-type", "NullTokenizer", "--vocab-size=9"}),
                HasSubstr("bad.txt, document at line 3: "));
  EXPECT_THAT(error({"--input", lines, "--output-prefix", prefix}),
              HasSubstr("in.jsonl:2: no text under the key \"text\""));
  EXPECT_THAT(error({"--input", input("bad.jsonl", "{\"text"), "--output-prefix", prefix}),
              HasSubstr("bad.jsonl:1: not valid JSON"));
  EXPECT_THAT(error({"--input", input("empty.txt", ""), "--output-prefix", prefix}),
              HasSubstr("there is no text to write"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--tokenizer-type", "Nul"}),
              HasSubstr("--tokenizer-type: 'Nul' is not one of ByteTokenizer, NullTokenizer"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--tokenizer-type", "NullTokenizer"}),
              HasSubstr("NullTokenizer: needs --vocab-size N"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--vocab-size", "9"}),
              HasSubstr("--vocab-size: ByteTokenizer has a vocabulary of its own"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--seed", "3"}),
              HasSubstr("--seed: decides --stories only"));
  EXPECT_THAT(error({"--input", lines, "--output-prefix", prefix, "--documents", "lines"}),
              HasSubstr("--documents: in JSON lines each line is a document"));
  EXPECT_THAT(
      error({"--stories", "3K", "--output-prefix", prefix, "--tokenizer-type", "NullTokenizer", "--vocab-size", "9"}),
      HasSubstr("--stories: stories are text, not numbers"));
  EXPECT_THAT(error({"--input", text, "--stories", "3K", "--output-prefix", prefix}),
              HasSubstr("give either --input FILE or --stories SIZE"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", folder_.file("none/p")}),
              HasSubstr("No such file or directory (does the folder exist?)"));
  EXPECT_EQ(folder_.entries(), 5u) << "a failed run leaves nothing but the inputs";
}

TEST_F(TokenizeCommand, Help) { EXPECT_THAT(run({"--help"}), HasSubstr("--append-eod")); }

}  // namespace
}  // namespace weft
