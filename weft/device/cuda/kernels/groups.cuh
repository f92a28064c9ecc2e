// Which group a tile of rows belongs to, when counts are known to the device only.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

struct TilePlace {
  int group;      // -1: there is no such tile
  int first_row;  // of the tile, in its group
  int count;      // rows of the group
  int offset;     // first row of the group
};

// Tiles of `rows` rows lie group after group. Called by a whole warp; the same answer for all lanes.
__device__ inline TilePlace find_tile(const std::int32_t* counts, const std::int32_t* offsets, int groups, int rows,
                                      int tile) {
  const int lane = threadIdx.x % 32;
  int base = 0;
  for (int g0 = 0; g0 < groups; g0 += 32) {
    const int g = g0 + lane, count = g < groups ? counts[g] : 0, tiles = (count + rows - 1) / rows;
    int end = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(all_lanes, end, step);
      if (lane >= step) end += below;
    }
    end += base;
    const unsigned here = __ballot_sync(all_lanes, tile >= end - tiles && tile < end);
    if (here != 0) {
      const int source = __ffs(static_cast<int>(here)) - 1;
      TilePlace place;
      place.group = g0 + source;
      place.first_row = __shfl_sync(all_lanes, (tile - (end - tiles)) * rows, source);
      place.count = __shfl_sync(all_lanes, count, source);
      place.offset = offsets[place.group];
      return place;
    }
    base = __shfl_sync(all_lanes, end, 31);
  }
  return {-1, 0, 0, 0};
}

}  // namespace weft::cuda
