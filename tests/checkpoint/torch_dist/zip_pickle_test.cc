#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/crc32.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/zip_archive.h"

namespace weft {
namespace {

using namespace written;

std::string zip_complaint(const std::string& bytes) {
  return message_of<UserError>([&] { ZipArchive(written::bytes_of(bytes), "f"); });
}

std::string replaced(std::string bytes, std::size_t at, const std::string& with) {
  return bytes.replace(at, with.size(), with);
}

TEST(TorchDistZip, checksum_is_that_of_zip) {
  EXPECT_EQ(crc32(written::bytes_of("123456789")), 0xcbf43926u);
  const std::string long_text(1000, 'x');
  EXPECT_EQ(crc32(written::bytes_of(long_text)),
            crc32(written::bytes_of(long_text).subspan(77), crc32(written::bytes_of(long_text).first(77))));
}

TEST(TorchDistZip, entries_are_found_with_and_without_zip64) {
  for (const bool zip64 : {true, false}) {
    const std::string bytes = zip({{"a/x", "one"}, {"a/y", ""}, {"a/z", std::string(100, 'z')}}, zip64);
    const ZipArchive archive(written::bytes_of(bytes), "f");
    ASSERT_EQ(archive.entries().size(), 3u);
    EXPECT_EQ(archive.at("a/x").bytes.size(), 3u);
    EXPECT_EQ(archive.at("a/z").bytes.size(), 100u);
    EXPECT_EQ((archive.at("a/z").bytes.data() - written::bytes_of(bytes).data()) % 64, 0);
    for (const ZipEntry& entry : archive.entries()) check_checksum(entry, "f", Pages::keep);
    EXPECT_EQ(message_of<UserError>([&] { archive.at("a/w"); }), "f: the archive has no entry 'a/w'");
  }
}

TEST(TorchDistZip, every_damage_is_named) {
  const std::string good = zip({{"a/x", "one"}, {"a/y", "two"}}, false);
  const std::size_t directory = good.find("PK\x01\x02"), end = good.find("PK\x05\x06");
  EXPECT_EQ(zip_complaint("PK"),
            "f: is not a zip archive, or is truncated: it has 2 bytes, and its end record alone takes 22");
  EXPECT_EQ(zip_complaint(good.substr(0, good.size() - 1)),
            "f: is not a zip archive, or is truncated: it does not end with an end record");
  EXPECT_EQ(zip_complaint(good.substr(1)),
            fmt::format("f: damaged: a central directory of 98 bytes at byte {} does not fit "
                        "before the end record at {}",
                        directory, end - 1));
  EXPECT_EQ(zip_complaint(replaced(good, end + 10, little(9, 2))),
            "f: damaged: 9 entries do not fit in a central directory of 98 bytes");
  EXPECT_EQ(zip_complaint(replaced(good, end + 10, little(1, 2))),
            "f: damaged: 49 bytes of the central directory follow its 1 entries");
  EXPECT_EQ(zip_complaint(replaced(good, end + 4, little(1, 2))),
            "f: is one of several parts of a zip archive, or damaged");
  EXPECT_EQ(
      zip_complaint(replaced(good, directory, "XX")),
      fmt::format("f: damaged: the central directory has no entry at byte {}, where one should begin", directory));
  EXPECT_EQ(zip_complaint(replaced(good, directory + 8, little(1, 2))), "f: entry 'a/x' is encrypted");
  EXPECT_EQ(zip_complaint(replaced(good, directory + 10, little(8, 2))),
            "f: entry 'a/x' is compressed (method 8, 3 bytes for 3); torch.save only stores");
  EXPECT_EQ(zip_complaint(replaced(good, directory + 42, little(5, 4))),
            "f: damaged: entry 'a/x' has no local header at byte 5");
  EXPECT_EQ(zip_complaint(replaced(good, directory + 42, little(1u << 30, 4))),
            fmt::format("f: a local header would begin at byte 1073741824, and there are {}", directory));
  EXPECT_EQ(zip_complaint(replaced(good, 30, "b")),
            "f: damaged: the local header at byte 0 is not that of entry 'a/x'");
  EXPECT_EQ(zip_complaint(replaced(good, directory + 20, little(5000, 4) + little(5000, 4))),
            "f: truncated or damaged: entry 'a/x' at byte 64 takes 5000 bytes, and 67 are left");
  EXPECT_EQ(zip_complaint(replaced(good, directory + 20, little(40, 4) + little(40, 4))),
            "f: damaged: the entries 'a/x' and 'a/y' overlap");
  EXPECT_EQ(zip_complaint(zip({{"a/x", "one"}, {"a/x", "two"}})), "f: damaged: has entry 'a/x' twice");
  const std::string zip64 = zip({{"a/x", "one"}});
  const std::size_t record = zip64.find("PK\x06\x06");
  EXPECT_EQ(zip_complaint(replaced(zip64, record, "XX")),
            fmt::format("f: damaged: there is no zip64 end record at byte {}", record));
  EXPECT_EQ(
      zip_complaint(replaced(zip64, record + 40, little(~0ull, 8))),
      fmt::format("f: damaged: a central directory of 18446744073709551615 bytes at byte {} does not fit before the "
                  "zip64 end record at {}",
                  record - 49, record));
  const std::string flipped = replaced(good, good.find("one"), "oNe");
  const ZipArchive archive(written::bytes_of(flipped), "f");
  EXPECT_NE(message_of<UserError>([&] {
              check_checksum(archive.at("a/x"), "f", Pages::keep);
            }).find("f: damaged: entry 'a/x' has checksum "),
            std::string::npos);
}

std::string pickle_complaint(const std::string& bytes) {
  return message_of<UserError>([&] { Pickle(written::bytes_of(bytes), "f"); });
}

Json json_of(const std::string& value) {
  const std::string bytes = pickle(value);
  const Pickle read(written::bytes_of(bytes), "f");
  return to_json(read.root(), read, "f");
}

TEST(TorchDistPickle, values_of_every_kind_are_plain_data) {
  EXPECT_EQ(json_of(tuple({none, yes, no, integer(-5), "K\x07", "M\x01\x02", "J" + little(0xffffffff, 4)})),
            Json::parse("[null, true, false, -5, 7, 513, -1]"));
  EXPECT_EQ(json_of(std::string("\x8a\x00", 2)), 0);
  EXPECT_EQ(json_of("\x8a\x01\xff"), -1);
  EXPECT_EQ(json_of("\x8a\x09" + little(1, 8) + "\x01"), "18446744073709551617");
  EXPECT_EQ(json_of("\x8a\x09" + little(0, 8) + "\xff"), "-18446744073709551616");
  EXPECT_EQ(json_of(std::string("G\x3f\xf8\0\0\0\0\0\0", 9)), 1.5);
  EXPECT_EQ(json_of(text("\xc3\xa4") + std::string("\x8c\x01\xff") + "\x86"), Json::parse(R"(["ä", "\ufffd"])"));
  EXPECT_EQ(json_of(fields({{"a", integer(1)}, {"b", list({})}, {"a", integer(2)}})),
            Json::parse(R"({"a": 2, "b": []})"));
  EXPECT_EQ(json_of(dict({{integer(3), text("x")}})), Json::parse(R"({"3": "x"})"));
  EXPECT_EQ(json_of("\x8f(" + integer(1) + "\x90"), Json::parse("[1]"));
  EXPECT_EQ(json_of(global("torch", "bfloat16")), "torch.bfloat16");
  EXPECT_EQ(json_of(object(global("argparse", "Namespace"), fields({{"lr", integer(1)}}))),
            Json::parse(R"({"lr": 1})"));
  EXPECT_EQ(json_of(call(global("collections", "OrderedDict"), no_arguments) + "(" + text("k") + none + "u"),
            Json::parse(R"({"k": null})"));
  EXPECT_EQ(json_of(global("megatron.core.enums", "ModelType") + tuple({integer(1)}) + "}\x92"),
            Json::parse(R"({"class": "megatron.core.enums.ModelType", "arguments": [1], "keywords": {}})"));
  // The memo: by number, by order, shared.
  EXPECT_EQ(json_of("](" + text("s") + "q\x05h\x05" + "2e"), Json::parse(R"(["s", "s", "s"])"));
}

TEST(TorchDistPickle, names_outside_the_list_are_refused_by_name) {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"os", "system"}, {"builtins", "eval"}, {"__builtin__", "getattr"}, {"torch", "load"}, {"megatron", "x"}}) {
    const std::string by_line = pickle_complaint(pickle(call(global(module, name), tuple({text("true")}))));
    EXPECT_NE(by_line.find("f: the pickle names '" + module + "." + name + "', at byte 2, which is not among"),
              std::string::npos)
        << by_line;
    EXPECT_NE(pickle_complaint(pickle(text(module) + text(name) + "\x93")).find("'" + module + "." + name + "'"),
              std::string::npos);
  }
}

TEST(TorchDistPickle, every_damage_is_named) {
  const auto damaged = [](const std::string& value) {
    const std::string message = pickle_complaint(pickle(value));
    const std::string begin = "f: damaged pickle, at byte ";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  };
  EXPECT_EQ(pickle_complaint(""), "f: is not a pickle of protocol 2 to 5: it does not begin with the byte 80");
  EXPECT_EQ(pickle_complaint("(dp0\n."), "f: is not a pickle of protocol 2 to 5: it does not begin with the byte 80");
  EXPECT_EQ(pickle_complaint("\x80\x06N."), "f: is a pickle of protocol 6; Weft reads 2 to 5");
  EXPECT_EQ(pickle_complaint("\x80\x04N"),
            "f: truncated or damaged: an opcode at byte 3 takes 1 bytes, and 0 are left");
  EXPECT_EQ(pickle_complaint("\x80\x04N.N"), "f: damaged: 1 bytes follow the end of the pickle");
  EXPECT_EQ(damaged("X" + little(1000, 4) + "a"),
            "f: truncated or damaged: text at byte 7 takes 1000 bytes, and 2 are left");
  EXPECT_EQ(damaged("I1\n"), "2: opcode 49, which Python does not write in protocols 2 to 5");
  EXPECT_EQ(damaged("\x82\x01"), "2: opcode 82, which Python does not write in protocols 2 to 5");
  EXPECT_EQ(damaged("R"), "2: 2 values are needed, 0 are on the stack");
  EXPECT_EQ(damaged("t"), "2: a mark is needed, and there is none");
  EXPECT_EQ(damaged("N(2"), "4: the stack is empty");
  EXPECT_EQ(damaged("NN"), "4: ends with 2 values instead of one");
  EXPECT_EQ(damaged("h\x05"), "2: memo entry 5 is used before it is set");
  EXPECT_EQ(damaged("Nr" + little(1u << 31, 4)), "3: memo entry 2147483648 of a pickle of 9 bytes");
  EXPECT_EQ(damaged("N)R"), "4: None is called as if it were a class");
  EXPECT_EQ(damaged(global("torch", "Size") + "NR"), "15: the arguments of torch.Size are None");
  EXPECT_EQ(damaged("NNb"), "4: None is changed as if it were an object");
  EXPECT_EQ(damaged("NNa"), "4: None is changed as if it were an object");
  EXPECT_EQ(damaged("}(Nu"), "5: a key without a value");
  EXPECT_EQ(damaged("NN\x93"), "4: the name of a class is not text");
  EXPECT_EQ(damaged("ctorch"), "2: a name without an end");
  EXPECT_EQ(damaged("\x95" + little(1000, 8) + "N"), "2: a frame of 1000 bytes, and 2 are left");
}

TEST(TorchDistPickle, values_without_end_are_refused) {
  const auto complaint = [](const std::string& value) { return message_of<UserError>([&] { json_of(value); }); };
  EXPECT_EQ(complaint("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a"),
            "f: values nest more than 64 deep");
  EXPECT_EQ(complaint(std::string(100000, ']') + std::string(99999, 'a')), "f: values nest more than 64 deep");
  // Twenty lists, each of ten times the one before: 10^20 values in 500 bytes.
  std::string bomb = "]";
  for (int level = 0; level < 20; ++level)
    bomb += "q\x01](" + std::string("h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01") + "e";
  EXPECT_EQ(complaint(tuple({bomb})).find("f: damaged"), 0u);
}

}  // namespace
}  // namespace weft
