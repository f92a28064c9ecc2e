// Whole parameters on the host, put together from the boxes that ranks hold.
#pragma once

#include <map>
#include <vector>

#include "weft/model/parameters.h"

namespace weft {

class LogicalParameters {
 public:
  // Copies the part's elements out of its tensor. False if an element is there already with other bits: replicas differ.
  [[nodiscard]] bool add(const ParameterPart& part, const HostTensor& tensor);
  // The same for all parameters of `other`, which may hold the same elements.
  [[nodiscard]] bool add(const LogicalParameters& other);
  // Copies the part's elements into its tensor, which has the type that they were added in. All must be there.
  void copy_to(const ParameterPart& part, HostTensor& tensor) const;

  bool has(const ParameterIdentity& identity) const { return parameters_.contains(identity); }
  // All elements, row-major; every one must be there.
  const HostTensor& at(const ParameterIdentity& identity) const;
  std::vector<double> numbers(const ParameterIdentity& identity) const;
  std::vector<ParameterIdentity> identities() const;  // in their order
  std::size_t size() const { return parameters_.size(); }

  bool operator==(const LogicalParameters& other) const;  // bit by bit

 private:
  struct Entry {
    HostTensor values;
    std::vector<bool> present;  // by element
    std::int64_t missing = 0;
  };
  static bool copy_in(Entry& entry, std::int64_t first, std::int64_t count, const std::byte* from);
  const Entry& complete(const ParameterIdentity& identity) const;

  std::map<ParameterIdentity, Entry> parameters_;
};

}  // namespace weft
