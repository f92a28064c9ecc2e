#include "apps/weft/tokenize_command.h"

#include <sstream>

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
  std::string run(const std::vector<std::string>& args, const std::string& standard_input = "") {
    std::FILE* out = std::tmpfile();
    std::istringstream in(standard_input);
    try {
      EXPECT_EQ(run_tokenize_command(args, out, in), 0);
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
  std::string error(const std::vector<std::string>& args, const std::string& standard_input = "") {
    return message_of<UserError>([&] { run(args, standard_input); });
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

using Words = std::vector<std::string>;
Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
std::string golden_tokenizer(const char* name) {
  return std::string(WEFT_SOURCE_DIR) + "/tests/golden/tokenizers/" + name + "/tokenizer.json";
}

constexpr const char* three_documents = "first\nline two\n\nsecond\n\n\n\nthird";

TEST_F(TokenizeCommand, BlankLinesSeparateDocuments) {
  const std::string text = input("in.txt", three_documents), prefix = folder_.file("p");
  EXPECT_THAT(run({"--input", text, "--output-prefix", prefix}),
              HasSubstr("p.bin: 3 documents, 31 tokens of 257 ids as uint16"));
  EXPECT_THAT(documents("p"), ElementsAre("first\nline two\n\n", "second\n\n\n\n", "third"));
  run({"--input=" + text, "--output-prefix", prefix, "--append-eod", "--overwrite"});
  EXPECT_THAT(documents("p"), ElementsAre("first\nline two#", "second#", "third#"));
}

TEST_F(TokenizeCommand, OrLinesOrNothingDoes) {
  const std::string text = input("in.txt", three_documents), prefix = folder_.file("p");
  run({"--input", text, "--output-prefix", prefix, "--documents", "lines", "--append-eod"});
  EXPECT_THAT(documents("p"), ElementsAre("first#", "line two#", "second#", "third#"));
  run({"--input", text, "--output-prefix", prefix, "--documents", "whole", "--append-eod", "--overwrite"});
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
              HasSubstr("--tokenizer-type: 'Nul' is not one of ByteTokenizer, NullTokenizer, HuggingFaceTokenizer"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--tokenizer-type", "NullTokenizer"}),
              HasSubstr("NullTokenizer: needs --vocab-size N"));
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix, "--vocab-size", "9"}),
              HasSubstr("--vocab-size 9: ByteTokenizer has a vocabulary of its own"));
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

TEST_F(TokenizeCommand, KeepsFilesUnlessToldToReplaceThem) {
  const std::string text = input("in.txt", "one\n"), lines = input("in.jsonl", "{\"a\":\"x\",\"b\":\"y\"}\n");
  const std::string prefix = folder_.file("p");
  run({"--input", text, "--output-prefix", prefix});
  const std::string bin = read_file(prefix + ".bin");
  write_file_atomically(text, "another\n");
  EXPECT_THAT(error({"--input", text, "--output-prefix", prefix}),
              HasSubstr("p.bin exists; replace it with --overwrite, or choose another --output-prefix"));
  EXPECT_EQ(read_file(prefix + ".bin"), bin);
  run({"--input", text, "--output-prefix", prefix, "--overwrite"});
  EXPECT_THAT(documents("p"), ElementsAre("another\n"));
  // The index of another data set, and what a story would be written to.
  input("q_b_document.idx", "another's");
  EXPECT_THAT(error({"--input", lines, "--output-prefix", folder_.file("q"), "--json-keys", "a,b"}),
              HasSubstr("q_b_document.idx exists"));
  input("s.txt", "another's");
  EXPECT_THAT(error({"--stories", "3K", "--output-prefix", folder_.file("s")}), HasSubstr("s.txt exists"));
  EXPECT_EQ(read_file(folder_.file("s.txt")), "another's");
  EXPECT_EQ(folder_.entries(), 6u);
}

TEST_F(TokenizeCommand, OneKeyThatIsNamedHasMegatronsNames) {
  const std::string lines = input("in.jsonl", "{\"content\":\"x\"}\n");
  run({"--input", lines, "--output-prefix", folder_.file("p"), "--json-keys", "content"});
  EXPECT_THAT(documents("p_content_document"), ElementsAre("x"));
}

TEST_F(TokenizeCommand, ThreadsKeepTheOrder) {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += "document " + std::to_string(7 * i) + "\n";  // several batches
  const std::string file = input("in.txt", text);
  const Words same = {"--input", file, "--documents", "lines", "--tokenizer-model", golden_tokenizer("gpt2")};
  run(same + Words{"--output-prefix", folder_.file("one"), "--threads", "1"});
  run(same + Words{"--output-prefix", folder_.file("four"), "--workers", "4"});
  EXPECT_EQ(read_file(folder_.file("one.bin")), read_file(folder_.file("four.bin")));
  EXPECT_EQ(read_file(folder_.file("one.idx")), read_file(folder_.file("four.idx")));
  // The first bad document is named, whichever thread meets it.
  text.insert(text.find("document 7000\n"), "\xff\n");
  text += "\xff";
  EXPECT_THAT(error({"--input", input("bad.txt", text), "--documents", "lines", "--tokenizer-model",
                     golden_tokenizer("gpt2"), "--output-prefix", folder_.file("bad"), "--threads", "4"}),
              HasSubstr("bad.txt, document at line 1001: the text is not UTF-8: byte 0 (0xff)"));
  EXPECT_FALSE(is_there(folder_.file("bad.bin")));
}

TEST_F(TokenizeCommand, PrintsIdsAndDecodesThem) {
  const Words llama = {"--tokenizer-model", golden_tokenizer("llama3")};
  const std::string lines = "{\"text\":\"Hello, world!\"}\n\n{\"text\":\"\"}\n{\"text\":\" \"}";
  EXPECT_EQ(run(llama + Words{"--print-ids"}, lines), "[1904,11,670,1859,0]\n[]\n[220]\n");
  const std::string special = run(llama + Words{"--print-ids", "--add-special-tokens", "--append-eod"}, lines);
  EXPECT_EQ(special, "[1918,1904,11,670,1859,0,1919]\n[1918,1919]\n[1918,220,1919]\n");
  EXPECT_EQ(run(llama + Words{"--decode", "--skip-special-tokens"}, special),
            "{\"text\":\"Hello, world!\"}\n{\"text\":\"\"}\n{\"text\":\" \"}\n");
  EXPECT_THAT(run(llama + Words{"--decode"}, special), HasSubstr("{\"text\":\"<|begin_of_text|>Hello, world!<|end_of"));
  EXPECT_EQ(run({"--print-ids"}, "{\"text\":\"\\u00e4\"}"), "[195,164]\n") << "bytes, if no tokenizer is named";
  EXPECT_EQ(run({"--decode", "--json-keys", "a"}, "[195,164]"), "{\"a\":\"\\u00e4\"}\n");
}

TEST_F(TokenizeCommand, ExplainsWrongLines) {
  const Words llama = {"--tokenizer-model", golden_tokenizer("llama3")};
  EXPECT_THAT(error(llama + Words{"--print-ids"}, "{\"text\":\"\"}\n{\"text\":1}"),
              HasSubstr("standard input, line 2: no text under the key \"text\""));
  EXPECT_THAT(error(llama + Words{"--print-ids"}, "{\"text\":\"\xff\"}"),
              HasSubstr("standard input, line 1: not valid JSON"));
  EXPECT_THAT(error(llama + Words{"--decode"}, "[1]\n[1923]"),
              HasSubstr("standard input, line 2: 1923 is outside the vocabulary of 1923 ids"));
  EXPECT_THAT(error(llama + Words{"--decode"}, "[-1]"), HasSubstr("-1 is outside the vocabulary"));
  EXPECT_THAT(error(llama + Words{"--decode"}, "[18446744073709551615]"), HasSubstr("is outside the vocabulary"));
  EXPECT_THAT(error(llama + Words{"--decode"}, "[1.5]"), HasSubstr("1.5 is not an id"));
  EXPECT_THAT(error(llama + Words{"--decode"}, "{}"), HasSubstr("must be a list of ids"));
  EXPECT_THAT(error(llama + Words{"--decode", "--print-ids"}), HasSubstr("drop one"));
  EXPECT_THAT(error(llama + Words{"--decode", "--output-prefix", "x"}), HasSubstr("--output-prefix: --decode reads"));
  EXPECT_THAT(error(llama + Words{"--decode", "--append-eod"}), HasSubstr("--append-eod: is for --print-ids"));
  EXPECT_THAT(error({"--print-ids", "--tokenizer-type", "TikTokenizer"}), HasSubstr("needs --tokenizer-model PATH"));
  EXPECT_THAT(error({"--print-ids", "--tokenizer-model", folder_.file("none")}), HasSubstr("No such file"));
  EXPECT_THAT(error({"--print-ids", "--tokenizer-model", folder_.file(".")}), HasSubstr("the folder has no tokenizer"));
  EXPECT_THAT(error({"--print-ids", "--tokenizer-model", input("odd", "hello")}),
              HasSubstr("is neither tokenizer.json of Hugging Face"));
  EXPECT_THAT(error(llama + Words{"--print-ids", "--vocab-size", "9", "--tokenizer-type", "HuggingFaceTokenizer"}),
              HasSubstr("--vocab-size 9: HuggingFaceTokenizer has a vocabulary of its own"));
  EXPECT_THAT(error(llama + Words{"--print-ids", "--tiktoken-pattern", "v1", "--tokenizer-type", "Llama2Tokenizer"}),
              HasSubstr("only TikTokenizer has them"));
}

TEST_F(TokenizeCommand, Help) { EXPECT_THAT(run({"--help"}), HasSubstr("--append-eod")); }

}  // namespace
}  // namespace weft
