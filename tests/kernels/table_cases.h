// tests/kernels/table_cases.h
// Hostile cases that every kernel of the table must get right, one a line, as the fuzzer prints
// them. A bug that was found and fixed leaves its line here.
#pragma once

namespace keyhole::test {

inline constexpr const char* kHostileCases[] = {
    // nothing to do, and nearly nothing
    "pattern=dense batch=0 heads=2 kv_heads=2 q_len=4 k_len=4",
    "pattern=dense q_len=0 k_len=5",
    "pattern=dense q_len=5 k_len=0",
    "pattern=dense q_len=0 k_len=0",
    "pattern=dense q_len=1 k_len=1 head_dim=1 v_head_dim=1",
    "pattern=not(dense) q_len=70 k_len=70",
    "pattern=sinks(0) q_len=65 k_len=3 sink=1",
    // rows that see nothing, at the beginning, at the end, in between
    "pattern=not(causal) q_len=67 k_len=67 regime=masked_nan",
    "pattern=and(causal,not(window(3))) q_len=66 k_len=66 regime=masked_nan",
    "pattern=causal q_len=90 k_len=20 regime=masked_nan",
    "pattern=and(dilated(2),not(dilated(4))) q_len=40 k_len=40 sink=1",
    "pattern=mask(2,7) q_len=50 k_len=60 regime=masked_nan",
    // whole tiles that nobody sees between tiles that somebody sees
    "pattern=or(window(1),sinks(1)) q_len=200 k_len=200 head_dim=4 v_head_dim=4",
    "pattern=or(sinks(1),global_at(150)) q_len=5 k_len=300 head_dim=4 v_head_dim=4",
    "pattern=tiles(64,64,30,3) q_len=230 k_len=250 head_dim=4 v_head_dim=4",
    // query tiles that see one key tile or none: dq may be written instead of summed
    "pattern=blocks(16) q_len=300 k_len=300 head_dim=72 v_head_dim=16 dq=padded",
    "pattern=and(causal,blocks(64)) heads=4 kv_heads=2 q_len=270 k_len=260 head_dim=8 v_head_dim=8",
    "pattern=blocks(128) heads=2 kv_heads=2 q_len=300 k_len=300 head_dim=72 v_head_dim=8 "
    "regime=attended_nan data=15",
    "pattern=causal q_len=300 k_len=100 head_dim=8 v_head_dim=8 regime=masked_nan",
    "pattern=per_head(blocks(32),not(dense)) heads=2 kv_heads=2 q_len=200 k_len=200 head_dim=72 "
    "v_head_dim=72",
    "pattern=and(blocks(384),dilated(3)) q_len=769 k_len=769 head_dim=8 v_head_dim=8 dq=bshd",
    "pattern=dense q_len=2500 k_len=40 head_dim=72 v_head_dim=8 dq=sliced",  // cut into chunks
    // lengths that differ, offsets
    "pattern=causal q_len=1 k_len=129",
    "pattern=causal q_len=3 k_len=130 offset=0",
    "pattern=causal q_len=64 k_len=65 offset=-40",
    "pattern=window(5,2) q_len=33 k_len=70 offset=60",
    // grouped heads; the group is not the number of kv heads
    "pattern=causal heads=6 kv_heads=2 q_len=37 k_len=41",
    "pattern=causal heads=10 kv_heads=2 q_len=19 k_len=19 regime=integers",
    "pattern=window(4) batch=3 heads=5 kv_heads=1 q_len=18 k_len=18",
    "pattern=dense batch=2 heads=9 kv_heads=3 q_len=7 k_len=70 sink=1",
    // head dimensions: odd, unequal, one, the largest
    "pattern=causal q_len=20 k_len=20 head_dim=1 v_head_dim=1",
    "pattern=causal q_len=20 k_len=20 head_dim=3 v_head_dim=1",
    "pattern=causal q_len=20 k_len=20 head_dim=17 v_head_dim=33",
    "pattern=causal q_len=20 k_len=70 head_dim=96 v_head_dim=64",
    "pattern=causal q_len=17 k_len=17 head_dim=576 v_head_dim=576",
    "pattern=window(9) q_len=66 k_len=66 head_dim=192 v_head_dim=128",
    "pattern=window(9) q_len=66 k_len=66 head_dim=65 v_head_dim=257",
    // wide heads, whose kernels refuse narrow ones
    "pattern=causal heads=2 kv_heads=1 q_len=130 k_len=140 head_dim=136 v_head_dim=72",
    "pattern=window(40,3) batch=2 q_len=130 k_len=120 head_dim=200 v_head_dim=256 softcap=2",
    "pattern=blocks(16) q_len=300 k_len=300 head_dim=192 v_head_dim=136 dq=padded",
    "pattern=blocks(64) heads=2 kv_heads=2 q_len=140 k_len=140 head_dim=248 v_head_dim=8 "
    "regime=attended_nan data=15",
    "pattern=and(blocks(384),dilated(3)) q_len=400 k_len=400 head_dim=136 v_head_dim=8 dq=bshd",
    "pattern=dense q_len=2500 k_len=40 head_dim=72 v_head_dim=136 dq=sliced",
    "pattern=strided(16) heads=2 kv_heads=1 q_len=150 k_len=150 head_dim=256 v_head_dim=256 sink=1",
    "pattern=not(causal) q_len=140 k_len=140 head_dim=192 v_head_dim=192 regime=masked_nan",
    // layouts, each on every tensor at least once
    "pattern=causal batch=2 heads=4 kv_heads=2 q_len=33 k_len=35 q=bshd k=padded v=sliced out=bshd "
    "lse=padded dout=odd_offset dq=padded dk=bshd dv=sliced",
    "pattern=causal batch=2 heads=4 kv_heads=2 q_len=33 k_len=35 q=odd_offset k=sliced v=bshd "
    "out=padded lse=odd_offset dout=bshd dq=bshd dk=padded dv=odd_offset",
    "pattern=causal batch=2 heads=4 kv_heads=2 q_len=33 k_len=35 q=expanded_heads k=expanded_batch "
    "v=expanded_heads out=sliced dout=expanded_batch dq=sliced dk=sliced dv=padded",
    "pattern=causal q_len=1 k_len=35 q=odd_strides k=odd_strides v=odd_strides out=odd_strides "
    "lse=odd_strides dout=odd_strides dq=odd_strides dk=odd_strides dv=odd_strides",
    "pattern=causal q_len=9 k_len=1 head_dim=1 v_head_dim=1 q=odd_strides k=odd_strides "
    "v=odd_strides "
    "out=odd_strides dout=odd_strides dq=odd_strides dk=odd_strides dv=odd_strides",
    // softcap, sink, scale
    "pattern=causal q_len=40 k_len=40 softcap=2",
    "pattern=causal q_len=40 k_len=40 softcap=0.5 regime=huge",
    "pattern=causal heads=3 kv_heads=3 q_len=40 k_len=40 sink=1",
    "pattern=window(2) heads=2 kv_heads=1 q_len=70 k_len=70 sink=1 softcap=30 regime=deep",
    "pattern=causal q_len=40 k_len=40 scale=0",
    "pattern=causal q_len=40 k_len=40 scale=0 softcap=2",
    "pattern=causal q_len=40 k_len=40 scale=-1.5",
    // numbers
    "pattern=causal q_len=70 k_len=70 regime=deep",
    "pattern=causal q_len=70 k_len=70 regime=huge",
    "pattern=causal q_len=70 k_len=70 regime=ties",
    "pattern=causal q_len=70 k_len=70 regime=zeros",
    "pattern=causal q_len=70 k_len=70 regime=subnormal",
    "pattern=causal q_len=70 k_len=70 regime=ones",
    "pattern=causal q_len=70 k_len=70 regime=integers",
    // tanh has no slope left in fp32, and delta is 0 by chance
    "pattern=causal batch=2 heads=6 kv_heads=3 q_len=14 k_len=14 head_dim=32 v_head_dim=1 "
    "softcap=0.5 "
    "regime=integers data=13379686408745127122",
    "pattern=window(6) q_len=130 k_len=130 head_dim=8 v_head_dim=8 regime=spike data=3",
    "pattern=causal q_len=70 k_len=70 regime=attended_nan data=11",
    "pattern=causal q_len=70 k_len=70 regime=attended_nan data=12",
    "pattern=dilated(3) q_len=70 k_len=70 regime=attended_nan data=13",
    "pattern=random(1,5,3) q_len=70 k_len=70 regime=attended_nan data=14",
    // heads and batch entries that differ, explicit positions
    "pattern=per_head(causal,window(2),not(dense)) heads=3 kv_heads=3 q_len=40 k_len=40",
    "pattern=per_batch(causal,dense) batch=2 q_len=40 k_len=45",
    "pattern=per_batch(per_head(causal,dilated(2)),random(1,3,1)) batch=2 heads=2 kv_heads=1 "
    "q_len=80 "
    "k_len=80",
    "pattern=at(1,2,5,causal) q_len=40 k_len=50",
    "pattern=at(2,4,6,window(7)) batch=2 q_len=40 k_len=50",
    "pattern=at(3,3,7,and(causal,dilated(2))) batch=2 heads=2 kv_heads=1 q_len=40 k_len=50",
    // parts: residue classes, gathers, and unions of them
    "pattern=dilated(4) q_len=130 k_len=130 head_dim=8 v_head_dim=8",
    "pattern=and(causal,and(window(60),dilated(8))) q_len=140 k_len=140 head_dim=8 v_head_dim=8",
    "pattern=strided(16) q_len=150 k_len=150 head_dim=8 v_head_dim=8 sink=1",
    "pattern=strided(7) q_len=33 k_len=150 head_dim=8 v_head_dim=8 softcap=3",
    "pattern=dilated(5,3) q_len=111 k_len=64 head_dim=8 v_head_dim=8 regime=integers",
    "pattern=random(1,9,5) q_len=150 k_len=300 head_dim=8 v_head_dim=8",
    "pattern=exponential q_len=150 k_len=150 head_dim=8 v_head_dim=8 regime=integers",
    "pattern=or(exponential,window(3)) q_len=150 k_len=150 head_dim=8 v_head_dim=8 sink=1",
    "pattern=or(window(2),or(dilated(9),random(1,4,2))) q_len=150 k_len=150 head_dim=8 "
    "v_head_dim=8",
    "pattern=or(and(causal,dilated(3)),and(not(causal),dilated(5))) q_len=100 k_len=100 head_dim=8 "
    "v_head_dim=8 regime=deep",
    "pattern=per_head(strided(8),exponential,causal) heads=3 kv_heads=1 q_len=100 k_len=100 "
    "head_dim=8 "
    "v_head_dim=8 regime=masked_nan",
    "pattern=and(exponential,not(window(1))) batch=2 heads=4 kv_heads=2 q_len=90 k_len=90 "
    "head_dim=8 "
    "v_head_dim=8 softcap=2 sink=1 dq=padded dk=sliced dv=bshd",
};

}  // namespace keyhole::test
