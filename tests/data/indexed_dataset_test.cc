#include "weft/data/indexed_dataset.h"

#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/indexed_dataset_writer.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// Three documents of a small vocabulary: 5 + 0 + 2 tokens, 16 bits each.
std::string write_small(const TemporaryFolder& folder) {
  const std::string prefix = folder.file("small");
  IndexedDatasetWriter writer(prefix, 1000);
  writer.add_document(std::vector<std::int32_t>{1, 2, 3, 999, 5});
  writer.add_document({});
  writer.add_document(std::vector<std::int32_t>{7, 8});
  writer.finish();
  return prefix;
}

std::vector<std::int32_t> read_all(const IndexedDataset& dataset, std::int64_t sequence) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.length(sequence)));
  dataset.read(sequence, 0, tokens);
  return tokens;
}

TEST(IndexedDataset, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  EXPECT_EQ(folder.entries(), 2u) << "no temporary file is left";
  const IndexedDataset dataset(prefix, 1000);
  EXPECT_EQ(dataset.token_type(), TokenType::u16);
  EXPECT_EQ(dataset.count(), 3);
  EXPECT_EQ(dataset.tokens(), 7);
  EXPECT_EQ(read_all(dataset, 0), (std::vector<std::int32_t>{1, 2, 3, 999, 5}));
  EXPECT_EQ(read_all(dataset, 1), (std::vector<std::int32_t>{}));
  EXPECT_EQ(read_all(dataset, 2), (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(dataset.document_boundaries(), (std::vector<std::int64_t>{0, 1, 2, 3}));
  std::vector<std::int32_t> part(2);
  dataset.read(0, 3, part);
  EXPECT_EQ(part, (std::vector<std::int32_t>{999, 5}));
}

TEST(IndexedDataset, FilesAreMegatronsByteForByte) {
  const TemporaryFolder folder;
  const std::string prefix = folder.file("two");
  IndexedDatasetWriter writer(prefix, 300);
  writer.add_document(std::vector<std::int32_t>{258, 1});
  writer.add_document(std::vector<std::int32_t>{2});
  writer.finish();
  EXPECT_EQ(read_file(prefix + ".bin"), std::string("\x02\x01\x01\0\x02\0", 6));
  std::string index("MMIDIDX\0\0", 9);
  index += std::string("\x01\0\0\0\0\0\0\0", 8) + '\x08';            // version, uint16
  index += std::string("\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0", 16);  // sequences, boundaries
  index += std::string("\x02\0\0\0\x01\0\0\0", 8);                   // lengths
  index += std::string("\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0", 16);    // pointers
  index += std::string("\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", 16);    // documents
  index += std::string("\x02\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(read_file(prefix + ".idx"), index);
}

TEST(IndexedDataset, WriterWidensAt65500) {
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder.file("wide"), 128000);
  writer.add_document(std::vector<std::int32_t>{127999, 0});
  writer.finish();
  EXPECT_EQ(read_all(IndexedDataset(folder.file("wide"), 128000), 0), (std::vector<std::int32_t>{127999, 0}));
}

TEST(IndexedDataset, BelievesTheTypeInTheIndex) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  // The same index with another type code and a .bin of that width.
  const auto rewrite = [&]<class T>(std::uint8_t code, T) {
    std::string index = read_file(prefix + ".idx");
    index[17] = static_cast<char>(code);
    const std::int64_t pointers[3] = {0, 5 * sizeof(T), 5 * sizeof(T)};
    std::memcpy(index.data() + 34 + 12, pointers, sizeof pointers);
    std::vector<T> tokens = {1, 2, 3, 99, 5, 7, 8};
    write_file_atomically(folder.file("other.idx"), index);
    write_file_atomically(folder.file("other.bin"), {reinterpret_cast<const char*>(tokens.data()), 7 * sizeof(T)});
    const IndexedDataset dataset(folder.file("other"), 100);
    EXPECT_EQ(static_cast<int>(dataset.token_type()), code);
    EXPECT_EQ(read_all(dataset, 0), (std::vector<std::int32_t>{1, 2, 3, 99, 5})) << "code " << int{code};
    EXPECT_EQ(read_all(dataset, 2), (std::vector<std::int32_t>{7, 8}));
  };
  rewrite(1, std::uint8_t{});
  rewrite(2, std::int8_t{});
  rewrite(3, std::int16_t{});
  rewrite(4, std::int32_t{});
  rewrite(5, std::int64_t{});
  rewrite(8, std::uint16_t{});
}

TEST(IndexedDataset, MoreThanTheWriterKeepsInMemory) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> tokens(300'000);  // 600 kB; the writer keeps up to 1 MiB
  IndexedDatasetWriter writer(folder.file("large"), 1000);
  for (int document = 0; document < 5; ++document) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>((i + 7 * i * i) % 900) + document;
    writer.add_document(tokens);
  }
  writer.finish();
  const IndexedDataset dataset(folder.file("large"), 1000);
  ASSERT_EQ(dataset.count(), 5);
  std::vector<std::int32_t> first(tokens.size()), last(tokens.size());
  dataset.read(0, 0, first);
  dataset.read(4, 0, last);
  EXPECT_TRUE(last == tokens);
  for (std::int32_t& token : first) token += 4;
  EXPECT_TRUE(first == tokens);
}

TEST(IndexedDataset, UnfinishedWriterLeavesNothing) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder.file("half"), 10);
    writer.add_document(std::vector<std::int32_t>{1});
    EXPECT_EQ(folder.entries(), 1u);
  }
  EXPECT_EQ(folder.entries(), 0u);
  EXPECT_THAT(message_of<UserError>([&] { IndexedDatasetWriter(folder.file("no/where"), 10); }),
              HasSubstr("does the folder exist?"));
}

TEST(IndexedDataset, TokensOutsideTheVocabularyAreNamed) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  const IndexedDataset dataset(prefix, 999);
  std::vector<std::int32_t> part(2);
  dataset.read(0, 0, part);  // what is read is checked, not the whole file
  const std::string message = message_of<UserError>([&] { dataset.read(0, 2, part); });
  EXPECT_THAT(message,
              HasSubstr("small.bin: token 999 at position 3 of sequence 0 (byte 6) is outside the vocabulary of "
                        "999 ids"));
}

// Each case damages one place of good files.
struct Damage {
  const char* name;
  const char* message;
  void (*index)(std::string&);
};

template <class T>
void put(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

class DamagedIndex : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedIndex, IsRefused) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  std::string index = read_file(prefix + ".idx");
  GetParam().index(index);
  write_file_atomically(prefix + ".idx", index);
  const std::string message = message_of<UserError>([&] { IndexedDataset(prefix, 1000); });
  EXPECT_THAT(message, HasSubstr("small.idx"));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
}

// Layout of small.idx: lengths at 34, pointers at 46, documents at 70, end at 102.
INSTANTIATE_TEST_SUITE_P(
    , DamagedIndex,
    ::testing::Values(
        Damage{"Magic", "does not begin with \"MMIDIDX\"", [](std::string& b) { b[0] = 'X'; }},
        Damage{"Empty", "is truncated: it has 0 bytes", [](std::string& b) { b.clear(); }},
        Damage{"Header", "is truncated: it has 33 bytes, and the header alone takes 34",
               [](std::string& b) { b.resize(33); }},
        Damage{"Version", "has version 2; Weft reads version 1", [](std::string& b) { put<std::uint64_t>(b, 9, 2); }},
        Damage{"TypeZero", "has the unknown type code 0", [](std::string& b) { b[17] = 0; }},
        Damage{"TypeNine", "has the unknown type code 9", [](std::string& b) { b[17] = 9; }},
        Damage{"Float", "holds float64 (type code 6), not tokens", [](std::string& b) { b[17] = 6; }},
        Damage{"Truncated", "is truncated: 101 bytes are too few for the 3 sequences and 4 document boundaries",
               [](std::string& b) { b.resize(101); }},
        Damage{"HugeSequences", "is truncated", [](std::string& b) { put<std::uint64_t>(b, 18, ~std::uint64_t{0}); }},
        Damage{"HugeDocuments", "is truncated",
               [](std::string& b) { put<std::uint64_t>(b, 26, ~std::uint64_t{0} / 8); }},
        Damage{"Longer", "has 8 bytes after its arrays", [](std::string& b) { b.append(8, '\0'); }},
        Damage{"Multimodal", "is the index of a multimodal data set", [](std::string& b) { b.append(3, '\0'); }},
        Damage{"NegativeLength", "sequence 1 has length -1", [](std::string& b) { put<std::int32_t>(b, 38, -1); }},
        Damage{"Pointer", "sequence 2 starts at byte 12, but the one before it ends at byte 10",
               [](std::string& b) { put<std::int64_t>(b, 62, 12); }},
        Damage{"FirstPointer", "sequence 0 starts at byte 2, but the one before it ends at byte 0",
               [](std::string& b) { put<std::int64_t>(b, 46, 2); }},
        Damage{"DocumentStart", "document 0 does not start at sequence 0",
               [](std::string& b) { put<std::int64_t>(b, 70, 1); }},
        Damage{"DocumentOrder", "document 2 starts at sequence 0, before the previous document",
               [](std::string& b) { put<std::int64_t>(b, 86, 0); }},
        Damage{"DocumentEnd", "its documents end at sequence 4, but it has 3 sequences",
               [](std::string& b) { put<std::int64_t>(b, 94, 4); }}),
    [](const auto& damage) { return std::string(damage.param.name); });

TEST(IndexedDataset, BinOfAnotherSizeIsRefused) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  write_file_atomically(prefix + ".bin", std::string(13, '\0'));
  EXPECT_THAT(message_of<UserError>([&] { IndexedDataset(prefix, 1000); }),
              HasSubstr("small.bin has 13 bytes, but small.idx describes 14 (7 tokens of uint16)"));
}

TEST(IndexedDataset, WrongPathsAreExplained) {
  const TemporaryFolder folder;
  const std::string prefix = write_small(folder);
  EXPECT_THAT(message_of<UserError>([&] { IndexedDataset(prefix + ".bin", 1000); }),
              HasSubstr("give the prefix that its two files share: " + prefix));
  EXPECT_THAT(message_of<UserError>([&] { IndexedDataset(folder.file("none"), 1000); }),
              HasSubstr("none.idx: No such file or directory"));
  std::filesystem::remove(prefix + ".bin");
  EXPECT_THAT(message_of<UserError>([&] { IndexedDataset(prefix, 1000); }),
              HasSubstr("small.bin: No such file or directory"));
}

}  // namespace
}  // namespace weft
