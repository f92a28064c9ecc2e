// A list of tensors as a kernel's parameter: one launch for all of them, whose blocks look up what they work on.
#pragma once

#include <cstdint>

namespace weft::cuda {

// Items of a list that a kernel handles, part after part; `first` is the item's first part.
template <class Item, int capacity>
struct List {
  Item items[capacity];
  int count = 0;
};

template <class Item, int capacity>
__device__ const Item& item_of(const List<Item, capacity>& list, int part) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.items[middle].first <= part)
      low = middle;
    else
      high = middle - 1;
  }
  return list.items[low];
}

// Hands a list over in as few launches as its length allows: flush(list, parts).
template <class Item, int capacity, class Flush>
class ListBuilder {
 public:
  explicit ListBuilder(const Flush& flush) : flush_(flush) {}
  void add(Item item, std::int64_t parts) {
    if (parts == 0) return;
    if (list_.count == capacity || parts_ + parts > (std::int64_t{1} << 30)) finish();
    item.first = static_cast<int>(parts_);
    list_.items[list_.count++] = item;
    parts_ += parts;
  }
  void finish() {
    if (list_.count > 0) flush_(list_, static_cast<unsigned>(parts_));
    list_.count = 0;
    parts_ = 0;
  }

 private:
  const Flush& flush_;
  List<Item, capacity> list_;
  std::int64_t parts_ = 0;
};

// Calls body with a builder that is as large as a list of `count` needs.
template <class Item, int few, int many, class Flush, class Body>
void with_list(std::size_t count, const Flush& flush, const Body& body) {
  if (count <= few) {
    ListBuilder<Item, few, Flush> builder(flush);
    body(builder);
    builder.finish();
  } else {
    ListBuilder<Item, many, Flush> builder(flush);
    body(builder);
    builder.finish();
  }
}

}  // namespace weft::cuda
