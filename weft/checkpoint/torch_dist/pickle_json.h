// Pickled data as JSON: the arguments of a run, as plain data.
#pragma once

#include <string>

#include "weft/base/json.h"
#include "weft/checkpoint/torch_dist/pickle.h"

namespace weft {

// None, truth values, numbers and text as themselves; tuples, lists and sets as arrays; dicts as objects, with the text
// of keys that are not text; an integer of more than 64 bits as its decimal digits; a class or function as its full name
// ("torch.bfloat16"); bytes as null; a Namespace as its attributes; any other object as {"class": NAME, "arguments":
// [...]} with "state" where it has one. Text that is not UTF-8 has U+FFFD where it is not.
//
// UserError that begins with `where` if values nest more than 64 deep or repeat so often that they would take more steps
// than a few for every byte of the pickle.
Json to_json(const PickleValue& value, const Pickle& pickle, const std::string& where);

}  // namespace weft
