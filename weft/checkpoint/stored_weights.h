// Parameters as tensors of a folder hold them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/safetensors_directory.h"

namespace weft {

// UserError "WHERE: the tensors are not those that ASKS asks for; missing ...; unexpected ..." unless the files hold the
// tensors and no others; those whose names end in one of `others` may be there too.
void check_tensor_names(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors,
                        const std::vector<std::string_view>& others, const std::string& where, const std::string& asks);

// UserError unless the entry has the shape that config.json asks for.
void check_shape(const TensorEntry& entry, const DiskTensor& tensor);

class StoredWeights {
 public:
  // Both must outlive it; every tensor is in the files. Checks their shapes and types, and that copies are copies.
  // tied: of an embedding that is also the head, for the complaint.
  StoredWeights(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors, bool tied);

  bool has(const ParameterIdentity& identity) const { return places_.contains(identity); }
  // Writes the parameter, [logical] of dtype `target`, row-major.
  void read(const ParameterIdentity& identity, const Shape& logical, DType target, void* out) const;
  // Writes the elements that the part holds to their places in its tensor.
  void read(const ParameterPart& part, HostTensor& tensor) const;

  // Writes the parameter, [logical], row-major: bit for bit where that is the type it is stored in.
  void read(const ParameterIdentity& identity, const Shape& logical, StoredType type, std::byte* out) const;

  StoredType type_of(const ParameterIdentity& identity) const;
  const std::string& tensor_of(const ParameterIdentity& identity) const;  // the name of the one that holds it
  // The pages that the parameter was read from need not stay in memory.
  void forget(const ParameterIdentity& identity) const;

 private:
  void read(const ParameterIdentity& identity, const Shape& logical, const BoxRuns& wanted, DType target,
            std::byte* out) const;
  struct Place {
    const TensorEntry* entry;
    std::vector<const DiskPart*> parts;
  };
  const Place& place_of(const ParameterIdentity& identity) const;
  void check_copies(const SafetensorsDirectory& files, const std::vector<DiskTensor>& tensors, bool tied) const;

  std::map<ParameterIdentity, Place> places_;
};

}  // namespace weft
