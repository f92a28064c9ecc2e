// Products of any size from tiles (micro_gemm.h), on one thread; and how a team shares one.
//
// Every element of a result is computed in the same way wherever the result is cut: sums over fixed blocks of k, each
// in ascending order, added up in ascending order. So bits depend on the factors only, not on the threads, the tile or
// the other rows. (Not so on CPUs with bfloat16 instructions, where bf16 products go to oneDNN.)
#pragma once

#include "weft/device/cpu/gemm.h"
#include "weft/device/cpu/team.h"

namespace weft::WEFT_ISA {

// Computes the product on the calling thread. Scratch: at most 8 MiB of the thread (f64: 14 MiB).
void multiply(const Product& product);

// The granularity of cuts: multiples of the tile waste nothing.
int row_step(DType c_dtype);
int column_step(DType c_dtype);

// Shares the product over the team: a fixed grid of parts, chosen by shape for balance and for little double packing.
void multiply(Team& team, const Product& product);

}  // namespace weft::WEFT_ISA
