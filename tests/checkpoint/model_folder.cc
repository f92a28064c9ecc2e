#include "tests/checkpoint/model_folder.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace weft {

std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden" / name;
}

ModelFolder::ModelFolder() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = fmt::format("weft-{}-{}-{}", test->test_suite_name(), test->name(), ::getpid());
  std::replace(name.begin(), name.end(), '/', '-');
  for (int i = 0;; ++i) {  // a test may have several
    path_ = std::filesystem::temp_directory_path() / fmt::format("{}-{}", name, i);
    if (std::filesystem::create_directories(path_)) break;
  }
}

ModelFolder::ModelFolder(const std::string& golden) : ModelFolder() {
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(golden_folder(golden) / file, path_ / file);
  }
}

ModelFolder::~ModelFolder() { std::filesystem::remove_all(path_); }

void ModelFolder::write(const std::string& name, std::string_view bytes) const {
  std::ofstream(file(name), std::ios::binary) << bytes;
}

void ModelFolder::patch_config(const Json& patch) const {
  Json config = read_json(file("config.json"));
  for (const auto& [key, value] : patch.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  write("config.json", config.dump(2));
}

void ModelFolder::set_null(const std::string& key) const {
  Json config = read_json(file("config.json"));
  config[key] = nullptr;
  write("config.json", config.dump(2));
}

std::vector<std::string> listing(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

RawTensors raw_tensors(const std::filesystem::path& file) {
  const SafetensorsFile in(file);
  RawTensors tensors;
  for (const TensorEntry& entry : in.entries()) {
    tensors[entry.name] = {entry.type, entry.shape,
                           std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size())};
  }
  return tensors;
}

void write_raw(const std::filesystem::path& file, const RawTensors& tensors) {
  std::vector<TensorToWrite> out;
  for (const auto& [name, tensor] : tensors) {
    const std::string* bytes = &tensor.bytes;
    out.push_back(
        {name, tensor.type, tensor.shape, [bytes](std::byte* to) { std::memcpy(to, bytes->data(), bytes->size()); }});
  }
  write_safetensors(file, out);
}

TensorToWrite tensor_in_memory(std::string name, DType dtype, const Shape& shape, const void* data) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return {std::move(name), stored_type_of(dtype), shape, [data, bytes](std::byte* out) {
            if (bytes > 0) std::memcpy(out, data, bytes);
          }};
}

std::vector<float> floats_of(const RawTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

RawTensor raw_of(const Shape& shape, const std::vector<float>& values) {
  return {StoredType::f32, shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
}

}  // namespace weft
