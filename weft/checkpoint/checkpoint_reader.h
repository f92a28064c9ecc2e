// A complete checkpoint of a run, whatever its form: where training takes weights and optimizer state from.
//
// Tensors are found by content and identity, so a reader need not know the form or the layout that wrote them.
// RunCheckpoint (Weft's own form) and MegatronCheckpoint implement it.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/checkpoint/run_position.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/model/content.h"
#include "weft/model/parameters.h"

namespace weft {

struct CheckpointTensor {
  std::string name;  // in the checkpoint
  StoredType type = StoredType::f32;
  Shape shape;
};

// Open for reading by any number of threads. What is damaged is a UserError that names file and tensor.
class CheckpointReader {
 public:
  CheckpointReader() = default;
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  virtual ~CheckpointReader() = default;

  virtual const std::filesystem::path& folder() const = 0;  // for messages
  virtual bool of_run() const = 0;  // false: a model without a run, which begins anew; it has no moments
  virtual RunPosition position() const = 0;
  virtual std::string pattern() const = 0;  // of the model that was saved; "": not recorded
  virtual Json arguments() const = 0;       // the flags of the run that wrote it, an object, under its own names

  virtual bool has(Content content, const ParameterIdentity& identity) const = 0;
  // Why there are no moments, with what to do about it; "": there are some, or none are expected.
  virtual std::string optimizer_problem() const { return ""; }
  // Writes the elements that the part holds to their places in its tensor. UserError where it is not there or has
  // another shape.
  virtual void read(Content content, const ParameterPart& part, HostTensor& tensor) const = 0;

  virtual std::vector<CheckpointTensor> tensors() const = 0;  // all, by name
  // The names of those that hold nothing of these parameters.
  virtual std::vector<std::string> others(const std::set<ParameterIdentity>& model) const = 0;
  virtual void verify() const = 0;  // every byte, as far as the form has checksums
};

}  // namespace weft
