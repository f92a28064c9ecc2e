#include "weft/checkpoint/stored_weights.h"

#include <algorithm>
#include <set>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"

namespace weft {
namespace {

// "3 tensors: a, b, c": at most five by name.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  const std::string shown = join(std::span(names).first(std::min(most, names.size())), ", ");
  return fmt::format("{} tensor{}: {}{}", names.size(), names.size() == 1 ? "" : "s", shown,
                     names.size() > most ? ", ..." : "");
}

// One of ours that holds all numbers of a float type.
DType type_holding(StoredType type) { return type == StoredType::f64 ? DType::f64 : DType::f32; }

std::size_t size_of(StoredType type) { return static_cast<std::size_t>(bits_of(type)) / 8; }

}  // namespace

void check_tensor_names(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors,
                        const std::vector<std::string_view>& others, const std::string& where,
                        const std::string& asks) {
  std::set<std::string_view> expected;
  std::vector<std::string> missing, unexpected;
  for (const DiskTensor& tensor : tensors) {
    expected.insert(tensor.name);
    if (files.find(tensor.name) == nullptr) missing.push_back(tensor.name);
  }
  for (const TensorEntry* entry : files.entries()) {
    const bool known = expected.contains(entry->name) ||
                       std::any_of(others.begin(), others.end(), [&](auto end) { return entry->name.ends_with(end); });
    if (!known) unexpected.push_back(entry->name);
  }
  if (missing.empty() && unexpected.empty()) return;
  std::string text = fmt::format("{}: the tensors are not those that {} asks for", where, asks);
  if (!missing.empty()) text += "; missing " + listed(missing);
  if (!unexpected.empty()) text += "; unexpected " + listed(unexpected);
  throw UserError(text);
}

void check_shape(const TensorEntry& entry, const DiskTensor& tensor) {
  if (entry.shape != tensor.shape)
    throw UserError("{}: tensor '{}' has the shape {}, but config.json asks for {}", entry.file, tensor.name,
                    to_text(entry.shape), to_text(tensor.shape));
}

StoredWeights::StoredWeights(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors, bool tied) {
  for (const DiskTensor& tensor : tensors) {
    const TensorEntry* const entry = files.find(tensor.name);
    WEFT_CHECK(entry != nullptr, "there is no tensor '{}'", tensor.name);
    check_shape(*entry, tensor);
    if (!is_float(entry->type)) {
      throw UserError("{}: tensor '{}' has dtype {}; weights are read from F32, F64, BF16 and F16", entry->file,
                      tensor.name, name_of(entry->type));
    }
    if (tensor.copy) continue;
    for (const DiskPart& part : tensor.parts) {
      Place& place = places_[part.identity];
      WEFT_CHECK(place.parts.empty() || place.entry == entry, "{} is stored in two tensors", to_text(part.identity));
      place.entry = entry;
      place.parts.push_back(&part);
    }
  }
  check_copies(files, tensors, tied);
}

void StoredWeights::check_copies(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors,
                                 bool tied) const {
  for (const DiskTensor& tensor : tensors) {
    if (!tensor.copy) continue;
    const DiskPart& part = tensor.parts[0];
    const TensorEntry& copy = *files.find(tensor.name);
    const TensorEntry& original = *place_of(part.identity).entry;
    const std::int64_t columns = part.parameter[-1];
    std::vector<double> a(static_cast<std::size_t>(columns)), b(a);
    for (std::int64_t row = 0; row < part.parameter.rows(); ++row) {
      read_range(copy, row * columns, columns, DType::f64, a.data());
      read_range(original, row * columns, columns, DType::f64, b.data());
      if (a == b) continue;
      if (!tied)
        throw UserError("{}: '{}' must be a copy of '{}', but they differ", copy.file, copy.name, original.name);
      throw UserError(
          "{}: config.json has tie_word_embeddings, but '{}' and '{}' differ; if the model is not tied, set it to "
          "false "
          "there",
          copy.file, copy.name, original.name);
    }
  }
}

const StoredWeights::Place& StoredWeights::place_of(const ParameterIdentity& identity) const {
  const auto at = places_.find(identity);
  WEFT_CHECK(at != places_.end(), "the files have no parameter {}", to_text(identity));
  return at->second;
}

void StoredWeights::read(const ParameterIdentity& identity, const Shape& logical, const BoxRuns& wanted, DType target,
                         std::byte* out) const {
  const Place& place = place_of(identity);
  for (const DiskPart* part : place.parts) {
    WEFT_CHECK(part->parameter == logical, "{} is {} here, {} on disk", to_text(identity), to_text(logical),
               to_text(part->parameter));
    read_part(*place.entry, *part, wanted, target, out);
  }
}

void StoredWeights::read(const ParameterIdentity& identity, const Shape& logical, DType target, void* out) const {
  read(identity, logical, BoxRuns(logical, Box::whole(logical), {}), target, static_cast<std::byte*>(out));
}

void StoredWeights::read(const ParameterPart& part, HostTensor& tensor) const {
  set_to_zero(part, tensor);  // rows of the vocabulary's padding
  read(part.identity, part.shape, part.runs(), tensor.dtype, tensor.bytes.data());
}

StoredType StoredWeights::type_of(const ParameterIdentity& identity) const { return place_of(identity).entry->type; }

const std::string& StoredWeights::tensor_of(const ParameterIdentity& identity) const {
  return place_of(identity).entry->name;
}

void StoredWeights::read(const ParameterIdentity& identity, const Shape& logical, StoredType type,
                         std::byte* out) const {
  const Place& place = place_of(identity);
  WEFT_CHECK(place.parts[0]->parameter == logical, "{} is {} here, {} on disk", to_text(identity), to_text(logical),
             to_text(place.parts[0]->parameter));
  if (place.entry->type == type) {
    for (const DiskPart* from : place.parts)
      gather_part(place.entry->bytes.data(), place.entry->shape, *from, size_of(type), out);
    return;
  }
  HostTensor values(type_holding(place.entry->type), logical.elements());
  read(identity, logical, values.dtype, values.bytes.data());
  store(values.dtype, values.bytes.data(), type, out, logical.elements());
}

void StoredWeights::forget(const ParameterIdentity& identity) const { forget_pages(place_of(identity).entry->bytes); }

}  // namespace weft
