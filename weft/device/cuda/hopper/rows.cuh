// Products of rows in groups: d_g = a_g b_g, groups' sizes and places in device memory. One warp loads by tensor maps, two
// warp groups multiply, each 64 rows of a tile of 128 x 256. Blocks stay and go over the tiles of all groups.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "weft/device/cuda/hopper/tensor_copy.cuh"
#include "weft/device/cuda/hopper/warp_group.cuh"

namespace weft::cuda::hopper {

struct RowProducts {
  CUtensorMap a;     // [rows, depth], boxes of 64 x 64
  CUtensorMap b;     // [groups, columns, depth], boxes of 128 x 64; or [groups, depth, columns], boxes of 64 x 64
  __nv_bfloat16* d;  // [rows, columns]
  std::int64_t d_stride;
  const std::int32_t *counts, *offsets;
  int groups, columns, depth;
};

// How blocks go over a result: clusters of `down` x `across` tiles share what they read of b and a. side_by_side: b's
// elements lie so along columns, not along the sum. lag: steps of the sum by which the second warp group begins later, so
// that one multiplies while the other stores.
template <bool columns_side_by_side, int down_, int across_, int lag_>
struct RowsWay {
  static constexpr bool side_by_side = columns_side_by_side;
  static constexpr int down = down_, across = across_, blocks = down * across, lag = lag_;
};

constexpr int rows_threads = 384, rows_stages = 4;

struct RowsShared {
  std::byte a[rows_stages][128 * 128];
  std::byte b[rows_stages][256 * 128];
  std::byte stored[8][2][16 * 128];  // of each warp, in turns
  CopyBarrier full[rows_stages], empty[rows_stages];
  int4 tiles[rows_stages];  // that begin in a stage: first row, rows, first column; rows 0: there is none
};

// A place in the ring of stages.
struct Turn {
  int stage = 0;
  unsigned phase = 0;
  __device__ void advance() {
    if (++stage == rows_stages) stage = 0, phase ^= 1;
  }
};

// What a cluster does at once: `down` x `across` tiles; or, for the last rows of a group that are too few, tiles side by
// side.
template <class Way>
struct Units {
  const RowProducts& p;
  int lane;
  int whole, flat;  // units in a row of tiles

  int first = -32, before = 0;               // of the 32 groups at hand: the first, units before it
  int count = 0, offset = 0, units_end = 0;  // a lane has those of a group

  struct Unit {
    int group, row, rows, column;  // of this block's tile
    bool is_flat;
  };

  __device__ Units(const RowProducts& products, int lane_) : p(products), lane(lane_) {
    const int tiles = (p.columns + 255) / 256;
    whole = (tiles + Way::across - 1) / Way::across;
    flat = (tiles + Way::blocks - 1) / Way::blocks;
  }

  // All lanes of a warp; index grows from call to call.
  __device__ bool find(int index, int rank, Unit& unit) {
    int total = __shfl_sync(~0u, units_end, 31);
    while (index >= before + total) {
      before += total;
      first += 32;
      if (first >= p.groups) return false;
      const int group = first + lane;
      count = group < p.groups ? p.counts[group] : 0;
      offset = group < p.groups ? p.offsets[group] : 0;
      const int tiles = (count + 127) / 128;
      units_end = tiles / Way::down * whole + tiles % Way::down * flat;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, units_end, step);
        if (lane >= step) units_end += other;
      }
      total = __shfl_sync(~0u, units_end, 31);
    }
    index -= before;
    const int at = __ffs(static_cast<int>(__ballot_sync(~0u, units_end > index))) - 1;
    const int earlier = __shfl_sync(~0u, units_end, at == 0 ? 0 : at - 1);
    if (at > 0) index -= earlier;
    const int rows = __shfl_sync(~0u, count, at);
    unit.group = first + at;
    unit.row = __shfl_sync(~0u, offset, at);
    const int tall = (rows + 127) / 128 / Way::down;  // rows of whole units
    int row_tile, column_tile;
    unit.is_flat = index >= tall * whole;
    if (unit.is_flat) {
      row_tile = tall * Way::down;
      column_tile = (index - tall * whole) * Way::blocks + rank;
    } else {
      // Bands of columns, so that what runs at once needs about as much of a as of b.
      constexpr int band = 8;
      const int number = index / (tall * band), within = index - number * tall * band;
      const int width = min(band, whole - number * band);
      row_tile = within / width * Way::down + rank / Way::across;
      column_tile = (number * band + within % width) * Way::across + rank % Way::across;
    }
    unit.row += row_tile * 128;
    unit.rows = min(128, rows - row_tile * 128);
    unit.column = column_tile * 256;
    return true;
  }
};

template <class Way>
__device__ void load_tiles(const RowProducts& p, RowsShared& shared, int lane) {
  constexpr bool alone = Way::blocks == 1;
  const int rank = alone ? 0 : static_cast<int>(rank_in_cluster());
  const int clusters = static_cast<int>(gridDim.x) / Way::blocks;
  const int steps = (p.depth + 63) / 64;
  Units<Way> units(p, lane);
  typename Units<Way>::Unit unit;
  Turn turn;
  for (int index = static_cast<int>(blockIdx.x) / Way::blocks; units.find(index, rank, unit); index += clusters) {
    // The blocks that get the same a and b, and which of them this one is.
    int a_sharing = Way::across, a_member = rank % Way::across, b_sharing = Way::down, b_member = rank / Way::across;
    unsigned a_blocks = ((1u << Way::across) - 1) << (rank / Way::across * Way::across), b_blocks = 0;
    for (int i = 0; i < Way::down; ++i) b_blocks |= 1u << (rank % Way::across + i * Way::across);
    if (unit.is_flat)
      a_sharing = Way::blocks, a_member = rank, a_blocks = (1u << Way::blocks) - 1, b_sharing = 1, b_member = 0;
    const int a_pieces = unit.rows > 64 ? 2 : 1;
    const unsigned bytes = a_pieces * 64 * 128 + 256 * 128;
    for (int step = 0; step < steps; ++step) {
      CopyBarrier& full = shared.full[turn.stage];
      shared.empty[turn.stage].wait(turn.phase ^ 1);
      if (lane == 0) {
        if (step == 0) shared.tiles[turn.stage] = int4{unit.row, unit.rows, unit.column, 0};
        full.expect(bytes);
        for (int i = a_member; i < a_pieces; i += a_sharing) {
          std::byte* to = shared.a[turn.stage] + i * 64 * 128;
          if (a_sharing == 1)
            load_box(to, p.a, full, step * 64, unit.row + i * 64);
          else
            load_box_for(to, p.a, full, step * 64, unit.row + i * 64, static_cast<Blocks>(a_blocks));
        }
        constexpr int b_pieces = Way::side_by_side ? 4 : 2;
        for (int i = b_member; i < b_pieces; i += b_sharing) {
          std::byte* to = shared.b[turn.stage] + i * (256 / b_pieces) * 128;
          const int x = Way::side_by_side ? unit.column + i * 64 : step * 64;
          const int y = Way::side_by_side ? step * 64 : unit.column + i * 128;
          if (b_sharing == 1)
            load_box(to, p.b, full, x, y, unit.group);
          else
            load_box_for(to, p.b, full, x, y, unit.group, static_cast<Blocks>(b_blocks));
        }
      }
      __syncwarp();
      turn.advance();
    }
  }
  shared.empty[turn.stage].wait(turn.phase ^ 1);
  if (lane == 0) {
    shared.tiles[turn.stage] = int4{0, 0, 0, 0};
    shared.full[turn.stage].arrive();
  }
  __syncwarp();
}

// Stores 16 rows x 64 columns of a warp, through shared memory: whole lines of 128 bytes. (By the copy engine it takes as
// long, and the last rows of a group, after which another's begin, would be stored like this all the same.)
struct WarpStore {
  std::byte (*buffers)[16 * 128];
  int lane;
  int row = 0, count = 0;  // the first, and how many there are
  int turn = 0;

  // v[j][i]: the pair of columns 8 j + lane % 4 * 2 (+ 1) in row lane / 4 + 8 i. to: where the first row's columns go, of
  // which there are so many.
  __device__ void operator()(const unsigned (&v)[8][2], __nv_bfloat16* to, std::int64_t stride, int columns) {
    std::byte* buffer = buffers[turn];
    turn ^= 1;
    const int r = lane & 15;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const unsigned at = shared_address(buffer) + r * 128 + (((j + (lane >> 4)) ^ (r & 7)) << 4);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[j][0]),
                   "r"(v[j][1]), "r"(v[j + 1][0]), "r"(v[j + 1][1])
                   : "memory");
    }
    __syncwarp();  // and so all have read what the other buffer held
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in = i * 4 + lane / 8, chunk = lane % 8;
      if (in >= count || chunk * 8 >= columns) continue;
      const uint4 value = *reinterpret_cast<const uint4*>(buffer + in * 128 + ((chunk ^ (in & 7)) << 4));
      *reinterpret_cast<uint4*>(to + in * stride + chunk * 8) = value;
    }
  }
};

__device__ inline unsigned narrowed_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ inline void store_tile(const RowProducts& p, const float (&d)[128], WarpStore& store, int column) {
  __nv_bfloat16* to = p.d + store.row * p.d_stride + column;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    unsigned v[8][2];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) v[j][i] = narrowed_pair(d[(c * 8 + j) * 4 + i * 2], d[(c * 8 + j) * 4 + i * 2 + 1]);
    store(v, to + c * 64, p.d_stride, p.columns - column - c * 64);
  }
}

template <class Way>
__device__ void multiply_tiles(const RowProducts& p, RowsShared& shared, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int steps = (p.depth + 63) / 64;
  const std::uint64_t a = operand(shared.a[0] + group * 64 * 128);
  const std::uint64_t b = Way::side_by_side ? operand(shared.b[0], 64 * 128) : operand(shared.b[0]);
  const auto release = [&](int stage) {
    if (lane < Way::blocks) arrive_at(shared.empty[stage], lane);
  };
  // Read by the lane that tells this block's loader that the stage is free.
  const int reader = Way::blocks == 1 ? 0 : static_cast<int>(rank_in_cluster());
  const auto tile_in = [&](int stage) {
    int4 tile = {};
    if (lane == reader) tile = shared.tiles[stage];
    return int4{__shfl_sync(~0u, tile.x, reader), __shfl_sync(~0u, tile.y, reader), __shfl_sync(~0u, tile.z, reader),
                0};
  };
  // The second warp group waits once until the first is ahead.
  constexpr int barrier = 1;
  bool ahead = Way::lag == 0;
  const auto let_go = [&] {
    if (!ahead) asm volatile("bar.arrive %0, 256;" ::"n"(barrier) : "memory");
    ahead = true;
  };
  if (!ahead && group == 1) {
    asm volatile("bar.sync %0, 256;" ::"n"(barrier) : "memory");
    ahead = true;
  }

  float d[128];
  WarpStore store{shared.stored[group * 4 + warp], lane};
  Turn turn;
  while (true) {
    shared.full[turn.stage].wait(turn.phase);
    const int4 tile = tile_in(turn.stage);
    if (tile.y == 0) break;
    const int row = group * 64 + warp * 16;  // in the tile, of this warp
    if (tile.y <= group * 64) {
      for (int step = 0; step < steps; ++step) {
        shared.full[turn.stage].wait(turn.phase);
        __syncwarp();
        release(turn.stage);
        turn.advance();
      }
      continue;
    }
    int last = 0;
    for (int step = 0; step < steps; ++step) {
      shared.full[turn.stage].wait(turn.phase);
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply<Way::side_by_side>(d, advanced_by(a, turn.stage * 128 * 128 + k * 32),
                                    advanced_by(b, turn.stage * 256 * 128 + k * (Way::side_by_side ? 16 * 128 : 32)),
                                    step > 0 || k > 0);
      end_products();
      await_products<1>();
      if (step > 0) release(last);
      if (Way::lag > 0 && step + 1 == Way::lag) let_go();
      last = turn.stage;
      turn.advance();
    }
    await_products<0>();
    release(last);
    let_go();
    store.row = tile.x + row, store.count = tile.y - row;
    if (store.count > 0) store_tile(p, d, store, tile.z);
  }
  let_go();
}

template <class Way>
__global__ void __launch_bounds__(rows_threads, 1) multiply_rows(const __grid_constant__ RowProducts p) {
  extern __shared__ __align__(1024) std::byte memory[];
  RowsShared& shared = *reinterpret_cast<RowsShared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < rows_stages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(8 * Way::blocks);  // warps that multiply
    }
    fence_barriers();
    prefetch(p.a), prefetch(p.b);
  }
  __syncthreads();
  synchronize_cluster();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < 256 + 32) load_tiles<Way>(p, shared, static_cast<int>(threadIdx.x) % 32);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_tiles<Way>(p, shared, static_cast<int>(threadIdx.x) / 128);
  }
  // None leaves while another block may still write to its barriers or its memory.
  __syncwarp();
  synchronize_cluster();
}

}  // namespace weft::cuda::hopper
