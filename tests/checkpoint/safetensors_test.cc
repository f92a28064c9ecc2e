#include "weft/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

std::string with_header(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += json;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
  return bytes;
}

// What opening a file with these bytes complains of, without the file's name, with which it must begin.
std::string complaint(const std::string& bytes) {
  const ModelFolder folder;
  folder.write("x.safetensors", bytes);
  const std::string file = folder.file("x.safetensors").string();
  const std::string message = message_of<UserError>([&] { SafetensorsFile{file}; });
  if (message.empty()) return "";
  EXPECT_EQ(message.find(file + ": "), 0u) << message;
  return message.substr(file.size() + 2);
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsNamesShapesMetadataAndValues) {
  const ModelFolder folder;
  // Data 0, 1, 2, ...; 'b' lies before 'a', at an odd address, and the header is padded.
  const std::string header = R"({"__metadata__":{"format":"pt","who":"me"},"a":)" + tensor("I16", "[2,2]", "[3,11]") +
                             R"(,"b":)" + tensor("U8", "[3]", "[0,3]") + R"(,"empty":)" +
                             tensor("F32", "[2,0]", "[3,3]") + R"(,"scalar":)" + tensor("I8", "[]", "[11,12]") + "}   ";
  folder.write("x.safetensors", with_header(header, 12));
  const SafetensorsFile file(folder.file("x.safetensors"));
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.metadata().at("who"), "me");
  EXPECT_EQ(file.at("a").shape, (Shape{2, 2}));
  EXPECT_EQ(file.at("a").type, StoredType::i16);
  std::vector<std::int32_t> a(4);
  read_as(file.at("a"), DType::i32, a.data());
  EXPECT_EQ(a, (std::vector<std::int32_t>{0x0403, 0x0605, 0x0807, 0x0a09}));
  read_range(file.at("a"), 2, 1, DType::i32, a.data());
  EXPECT_EQ(a[0], 0x0807);
  EXPECT_EQ(file.at("empty").shape.elements(), 0);
  EXPECT_EQ(file.at("scalar").shape.dims(), 0);
  std::int64_t scalar = 0;
  read_as(file.at("scalar"), DType::i64, &scalar);
  EXPECT_EQ(scalar, 11);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(message_of<UserError>([&] { file.at("scaler"); }),
            folder.file("x.safetensors").string() + ": has no tensor 'scaler'; there is 'scalar'");
}

TEST(Safetensors, AnEmptyFileOfTensorsIsLegal) {
  const ModelFolder folder;
  folder.write("x.safetensors", with_header("{}", 0));
  EXPECT_TRUE(SafetensorsFile(folder.file("x.safetensors")).entries().empty());
}

TEST(Safetensors, FilesThatCannotBeRead) {
  const ModelFolder folder;
  const std::string missing = folder.file("none").string();
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsFile{missing}; }),
            "cannot read " + missing + ": No such file or directory");
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsFile{folder.path()}; }),
            "cannot read " + folder.path().string() + ": not a regular file");
}

TEST(Safetensors, HeadersThatAreNone) {
  EXPECT_EQ(complaint(""), "not a safetensors file: 0 bytes, and the length of the header alone takes 8");
  EXPECT_EQ(complaint("1234567"), "not a safetensors file: 7 bytes, and the length of the header alone takes 8");
  EXPECT_EQ(complaint(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
            "not a safetensors file, or a damaged one: its header would be 100000001 bytes long, more than 100000000");
  EXPECT_EQ(complaint(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)),
            "not a safetensors file, or a damaged one: its header would be 18446744073709551615 bytes long, more than "
            "100000000");
  EXPECT_EQ(complaint(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "truncated: the header is 3 bytes long, and the file ends after 2 of them");
  EXPECT_EQ(complaint(with_header("", 0)), "not a safetensors file: the header must begin with '{'");
  EXPECT_EQ(complaint(with_header(" {}", 0)), "not a safetensors file: the header must begin with '{'");
  EXPECT_EQ(complaint(with_header("[]", 0)), "not a safetensors file: the header must begin with '{'");
  EXPECT_EQ(complaint(with_header("{\"a\":", 0)).find("header: not valid JSON: "), 0u);
  EXPECT_EQ(complaint(with_header("{}{}", 0)).find("header: not valid JSON: "), 0u);
  EXPECT_EQ(complaint(with_header("{\"\xff\":1}", 0)).find("header: not valid JSON: "), 0u);
  EXPECT_EQ(complaint(with_header(std::string("{}\0", 3), 0)).find("header: not valid JSON: "), 0u);
  EXPECT_EQ(complaint(with_header(R"({"__metadata__":3})", 0)), "__metadata__ must be an object, is 3");
  EXPECT_EQ(complaint(with_header(R"({"__metadata__":{"a":1}})", 0)), "__metadata__ 'a' must be text, is 1");
}

TEST(Safetensors, DuplicateKeys) {
  const std::string a = tensor("U8", "[1]", "[0,1]");
  EXPECT_EQ(complaint(with_header(R"({"a":)" + a + R"(,"a":)" + a + "}", 1)),
            "header: the key 'a' occurs twice in one object");
  EXPECT_EQ(complaint(with_header(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1)),
            "header: the key 'dtype' occurs twice in one object");
}

TEST(Safetensors, TensorsThatAreWrongInThemselves) {
  const auto of = [](const std::string& value) { return complaint(with_header(R"({"t":)" + value + "}", 4)); };
  EXPECT_EQ(of("7"), "tensor 't': must be an object, is 7");
  EXPECT_EQ(of(R"({"dtype":"U8","shape":[4]})"), "tensor 't': lacks 'data_offsets'");
  EXPECT_EQ(of(R"({"shape":[4],"data_offsets":[0,4]})"), "tensor 't': lacks 'dtype'");
  EXPECT_EQ(of(R"({"dtype":"U8","data_offsets":[0,4]})"), "tensor 't': lacks 'shape'");
  EXPECT_EQ(of(tensor("F33", "[1]", "[0,4]")), "tensor 't': unknown dtype \"F33\"");
  EXPECT_EQ(of(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})"), "tensor 't': dtype must be text, is 8");
  EXPECT_EQ(of(tensor("U8", "4", "[0,4]")), "tensor 't': shape must be a list, is 4");
  EXPECT_EQ(of(tensor("U8", "[-4]", "[0,4]")), "tensor 't': shape holds the negative number -4");
  EXPECT_EQ(of(tensor("U8", "[4.0]", "[0,4]")), "tensor 't': shape holds 4.0, which is not a whole number of 64 bits");
  EXPECT_EQ(of(tensor("U8", "[1,1,1,1,1,4]", "[0,4]")), "tensor 't': has 6 dims, Weft reads at most 5");
  EXPECT_EQ(of(tensor("F32", "[4294967296,4294967296]", "[0,4]")),
            "tensor 't': shape [4294967296,4294967296] is too large to be true");
  EXPECT_EQ(of(tensor("F4", "[3]", "[0,1]")), "tensor 't': [3] of F4 do not fill whole bytes");
  EXPECT_EQ(of(tensor("U8", "[4]", "[4]")), "tensor 't': data_offsets must be [begin, end], is [4]");
  EXPECT_EQ(of(tensor("U8", "[4]", "[-4,0]")), "tensor 't': data_offsets holds the negative number -4");
  EXPECT_EQ(of(tensor("U8", "[4]", "[0,18446744073709551616]")),
            "tensor 't': data_offsets holds 1.8446744073709552e+19, which is not a whole number of 64 bits");
  EXPECT_EQ(of(tensor("U8", "[4]", "[4,0]")), "tensor 't': data_offsets [4,0] go backwards");
  EXPECT_EQ(of(tensor("U8", "[4]", "[18446744073709551612,18446744073709551615]")),
            "tensor 't': data_offsets [18446744073709551612,18446744073709551615] hold 3 bytes, but [4] of U8 take 4");
  EXPECT_EQ(of(tensor("F32", "[2]", "[0,4]")), "tensor 't': data_offsets [0,4] hold 4 bytes, but [2] of F32 take 8");
}

TEST(Safetensors, TensorsThatDoNotTileTheData) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return complaint(
        with_header(R"({"a":)" + tensor("U8", "[4]", a) + R"(,"b":)" + tensor("U8", "[4]", b) + "}", data));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "");
  EXPECT_EQ(two("[0,4]", "[3,7]", 7),
            "tensors 'a' and 'b' overlap: one ends at byte 4 of the data, the other begins at 3");
  EXPECT_EQ(two("[0,4]", "[0,4]", 4),
            "tensors 'a' and 'b' overlap: one ends at byte 4 of the data, the other begins at 0");
  EXPECT_EQ(two("[0,4]", "[5,9]", 9), "a hole in the data: bytes 4 to 5, before tensor 'b', belong to none");
  EXPECT_EQ(two("[1,5]", "[5,9]", 9), "a hole in the data: bytes 0 to 1, before tensor 'a', belong to none");
  EXPECT_EQ(two("[0,4]", "[4,8]", 7), "truncated: tensor 'b' ends at byte 8 of the data, and the file has 7");
  EXPECT_EQ(two("[0,4]", "[4,8]", 0), "truncated: tensor 'b' ends at byte 8 of the data, and the file has 0");
  EXPECT_EQ(two("[0,4]", "[4,8]", 11), "3 bytes after the last tensor belong to none");
  EXPECT_EQ(complaint(with_header("{}", 1)), "1 bytes after the last tensor belong to none");
}

TEST(Safetensors, EveryTruncationOfAFileIsNoticed) {
  const std::string whole = read_file(golden_folder("llama") / "model.safetensors");
  const ModelFolder folder;
  for (std::size_t size = 0; size < whole.size(); size += size < 16 ? 1 : 997) {
    folder.write("x.safetensors", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile{folder.file("x.safetensors")}, UserError) << size;
  }
}

TEST(Safetensors, TypesThatAreNotWhatWasAskedFor) {
  const ModelFolder folder;
  const std::int64_t large = std::int64_t{1} << 40;
  const float one = 1;
  write_safetensors(folder.file("x"), {tensor_in_memory("tokens", DType::i64, {1}, &large),
                                       tensor_in_memory("weight", DType::f32, {1}, &one)});
  const SafetensorsFile file(folder.file("x"));
  const std::string where = folder.file("x").string();
  std::int32_t integer = 0;
  float number = 0;
  EXPECT_EQ(message_of<UserError>([&] { read_as(file.at("tokens"), DType::f32, &number); }),
            where + ": tensor 'tokens' has dtype I64; F32, F64, BF16 or F16 is wanted");
  EXPECT_EQ(message_of<UserError>([&] { read_as(file.at("weight"), DType::i32, &integer); }),
            where + ": tensor 'weight' has dtype F32; an integer dtype is wanted");
  EXPECT_EQ(message_of<UserError>([&] { read_as(file.at("tokens"), DType::i32, &integer); }),
            where + ": tensor 'tokens' (I64) holds a number that does not fit i32");
}

}  // namespace
}  // namespace weft
