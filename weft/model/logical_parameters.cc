#include "weft/model/logical_parameters.h"

#include <cstring>

#include "weft/base/error.h"

namespace weft {

bool LogicalParameters::copy_in(Entry& entry, std::int64_t first, std::int64_t count, const std::byte* from) {
  const std::size_t size = size_of(entry.values.dtype);
  for (std::int64_t i = 0; i < count; ++i, from += size) {
    std::byte* const to = entry.values.at(first + i);
    const auto index = static_cast<std::size_t>(first + i);
    if (entry.present[index]) {
      if (std::memcmp(to, from, size) != 0) return false;
    } else {
      entry.present[index] = true;
      --entry.missing;
      std::memcpy(to, from, size);
    }
  }
  return true;
}

bool LogicalParameters::add(const ParameterPart& part, const HostTensor& tensor) {
  Entry& entry = parameters_[part.identity];
  const std::int64_t elements = part.shape.elements();
  if (entry.present.empty() && elements > 0) {
    entry.values = HostTensor(tensor.dtype, elements);
    entry.present.resize(static_cast<std::size_t>(elements));
    entry.missing = elements;
  }
  WEFT_CHECK(entry.values.dtype == tensor.dtype && entry.values.elements() == elements,
             "{}: {} elements of {} and {} of {}", to_text(part.identity), entry.values.elements(),
             name_of(entry.values.dtype), elements, name_of(tensor.dtype));
  const BoxRuns runs = part.runs();
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const BoxRun run = runs[r];
    if (!copy_in(entry, run.logical, run.count, tensor.at(run.tensor))) return false;
  }
  return true;
}

bool LogicalParameters::add(const LogicalParameters& other) {
  for (const auto& [identity, theirs] : other.parameters_) {
    const auto [at, is_new] = parameters_.try_emplace(identity, theirs);
    if (is_new) continue;
    Entry& ours = at->second;
    WEFT_CHECK(ours.values.dtype == theirs.values.dtype && ours.present.size() == theirs.present.size(),
               "{} has two types or shapes", to_text(identity));
    for (std::size_t i = 0; i < theirs.present.size(); ++i) {
      const auto element = static_cast<std::int64_t>(i);
      if (theirs.present[i] && !copy_in(ours, element, 1, theirs.values.at(element))) return false;
    }
  }
  return true;
}

const LogicalParameters::Entry& LogicalParameters::complete(const ParameterIdentity& identity) const {
  const auto at = parameters_.find(identity);
  WEFT_CHECK(at != parameters_.end(), "there is no parameter {}", to_text(identity));
  WEFT_CHECK(at->second.missing == 0, "{} of the elements of {} are missing", at->second.missing, to_text(identity));
  return at->second;
}

void LogicalParameters::copy_to(const ParameterPart& part, HostTensor& tensor) const {
  const HostTensor& values = complete(part.identity).values;
  WEFT_CHECK(values.dtype == tensor.dtype && values.elements() == part.shape.elements(), "{}: a tensor of {} for {}",
             to_text(part.identity), name_of(tensor.dtype), name_of(values.dtype));
  const BoxRuns runs = part.runs();
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const BoxRun run = runs[r];
    std::memcpy(tensor.at(run.tensor), values.at(run.logical),
                static_cast<std::size_t>(run.count) * size_of(tensor.dtype));
  }
}

const HostTensor& LogicalParameters::at(const ParameterIdentity& identity) const { return complete(identity).values; }

std::vector<double> LogicalParameters::numbers(const ParameterIdentity& identity) const {
  const HostTensor& values = at(identity);
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < values.elements(); ++i) numbers.push_back(number_at(values, i));
  return numbers;
}

std::vector<ParameterIdentity> LogicalParameters::identities() const {
  std::vector<ParameterIdentity> all;
  for (const auto& [identity, entry] : parameters_) all.push_back(identity);
  return all;
}

bool LogicalParameters::operator==(const LogicalParameters& other) const {
  if (identities() != other.identities()) return false;
  for (const auto& [identity, entry] : parameters_) {
    const Entry& theirs = other.parameters_.at(identity);
    if (entry.values.dtype != theirs.values.dtype || entry.values.bytes != theirs.values.bytes ||
        entry.present != theirs.present)
      return false;
  }
  return true;
}

}  // namespace weft
